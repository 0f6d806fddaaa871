"""Pickles from strangers: data comes in, code does not."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osp.data.unpickle import load_plain
from osp.errors import UserError


class _Attack:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_batches_of_every_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    data = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    batch = {b"data": data, b"labels": [1, 2], "text": "x", b"empty": b"", b"floats": np.ones((2, 2), order="F")}
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(batch, protocol))
    loaded = load_plain(path)
    np.testing.assert_array_equal(loaded[b"data"], data)
    np.testing.assert_array_equal(loaded[b"floats"], np.ones((2, 2)))
    assert loaded[b"labels"] == [1, 2]
    assert loaded[b"empty"] == b""


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_arrays_of_old_and_new_numpy_are_read(tmp_path: Path, module: bytes) -> None:
    """The published batches are protocol 2 with numpy.core; today's numpy writes numpy._core."""
    raw = pickle.dumps({b"data": np.arange(6, dtype=np.uint8).reshape(2, 3)}, protocol=2)
    raw = raw.replace(b"numpy._core.multiarray", module).replace(b"numpy.core.multiarray", module)
    assert module in raw
    (tmp_path / "batch").write_bytes(raw)
    np.testing.assert_array_equal(load_plain(tmp_path / "batch")[b"data"], [[0, 1, 2], [3, 4, 5]])


def test_python_2_strings_are_read_as_bytes(tmp_path: Path) -> None:
    """Protocol 2 as Python 2 wrote it: 8-bit strings with the opcode U."""
    (tmp_path / "meta").write_bytes(b"\x80\x02}q\x00U\x0blabel_namesq\x01]q\x02(U\x03catq\x03U\x03dogq\x04es.")
    # the opcode's length byte is 11, the length of 'label_names'
    assert load_plain(tmp_path / "meta") == {b"label_names": [b"cat", b"dog"]}


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_a_command_is_refused_before_it_runs(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": _Attack(os.system, f"touch {marker}")}, protocol))
    with pytest.raises(UserError, match=r"data_batch_1 was refused.*system"):
        load_plain(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "value",
    [
        _Attack(eval, "1"),
        _Attack(getattr, {}, "clear"),
        _Attack(np.zeros, (3,)),
        _Attack(bytes, 10**12),
        _Attack(np.dtype, "O"),
        _Attack(np.dtype, "V8"),
        _Attack(np.ndarray, (10**6,)),
        np.array([{}], dtype=object),
        {1: _Attack(__import__, "os")},
        Path("x"),
    ],
)
def test_anything_but_plain_values_and_number_arrays_is_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(value, 2))
    with pytest.raises(UserError, match="was refused"):
        load_plain(path)


def test_the_state_of_a_dtype_cannot_be_set_from_a_file(tmp_path: Path) -> None:
    """The last number of its state holds flags; saying that bytes are objects makes numpy follow them as pointers."""
    raw = pickle.dumps(np.arange(16, dtype=np.uint8), 2)
    state = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq"
    assert raw.count(state) == 1
    (tmp_path / "batch").write_bytes(raw.replace(state, state.replace(b"K\x00tq", b"K\x3ftq")))
    loaded = load_plain(tmp_path / "batch")
    assert loaded.dtype == np.uint8
    assert not loaded.dtype.hasobject
    assert loaded.tolist() == list(range(16))


def test_every_cut_of_a_pickle_is_a_plain_error(tmp_path: Path) -> None:
    raw = pickle.dumps({b"data": np.arange(60, dtype=np.uint8), b"labels": [1, 2, 3]}, 2)
    path = tmp_path / "batch"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(UserError, match="batch"):
            load_plain(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_pickles_give_a_value_or_a_plain_error(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps({b"data": np.arange(60, dtype=np.uint8).reshape(5, 12), b"labels": [1, 2, 3]}, 2))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "batch").write_bytes(raw)
    value, refusal = None, ""
    try:
        value = load_plain(tmp_path / "batch")
    except UserError as error:
        refusal = str(error)
    plain = isinstance(value, dict | list | tuple | bytes | str | int | float | np.ndarray | None)
    assert "batch" in refusal if refusal else plain


def test_a_text_file_and_a_missing_file_are_plain_errors(tmp_path: Path) -> None:
    (tmp_path / "batch").write_text("hello, this is not a pickle")
    with pytest.raises(UserError, match="batch"):
        load_plain(tmp_path / "batch")
    with pytest.raises(UserError, match="cannot be read"):
        load_plain(tmp_path / "nothing")


def _twice_over(levels: int) -> bytes:
    """A tuple of itself twice, `levels` deep: a few bytes for 2^levels numbers."""
    return b"K\x01\x85q\x00" + b"".join(b"h%c\x86q%c" % (level, level + 1) for level in range(levels))


ENCODE = b"c_codecs\nencode\n"
LONG_TEXT = b"X" + (50_000).to_bytes(4, "little") + b"a" * 50_000
BOMBS = {
    "a nested tuple as a key": b"\x80\x02}" + _twice_over(40) + b"K\x01s.",
    "a deep tuple as a key": b"\x80\x02}K\x01" + b"\x85" * 100_000 + b"K\x01s.",
    "a deep tuple as a key of pairs": b"\x80\x02ccollections\nOrderedDict\nK\x01"
    + b"\x85" * 100_000
    + b"K\x02\x86\x85\x85R.",
    "a nested shape": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    + _twice_over(30)
    + b"U\x01b\x87R.",
    "a nested type": b"\x80\x02cnumpy\ndtype\n" + _twice_over(30) + b"K\x00K\x01\x87R.",
    "one text encoded many times": b"\x80\x02"
    + ENCODE
    + b"q\x00"
    + LONG_TEXT
    + b"q\x01X\x06\0\0\0latin1q\x02("
    + b"h\x00h\x01h\x02\x86R" * 70_000
    + b"l.",
    "a frame of 2^62 bytes": b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N.",
    "a text of 2^40 bytes": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"N.",
    "a state for a function": b"\x80\x02" + ENCODE + b"N}U\x0c__defaults__K\x01\x85s\x86b.",
    "2^33 bytes to be changed later": b"\x80\x05\x96" + (2**33).to_bytes(8, "little") + b"N.",
    "a tuple doubled 40 times": b"\x80\x02K\x01\x85" + b"2\x86" * 40 + b".",
    "pairs from an array of 2^39 rows and no bytes": b"\x80\x02ccollections\nOrderedDict\n"
    + pickle.dumps(np.empty((2, 2, 0)), 2)[2:-1].replace(
        b"(K\x01K\x02", b"(K\x01\x8a\x06" + (2**39).to_bytes(6, "little")
    )
    + b"\x85R.",
    "a set": b"\x80\x04\x8f.",
    "a call of a text": b"\x80\x02U\x01a)R.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_few_bytes_neither_fill_the_memory_nor_hang_nor_change_the_reader(tmp_path: Path, name: str) -> None:
    path = tmp_path / "batch"
    path.write_bytes(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as refused:
            load_plain(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 1000


def test_a_file_larger_than_any_batch_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "batch", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"batch has 1,099,511,627,776 bytes, more than any batch"):
        load_plain(tmp_path / "batch")


def test_a_memo_of_two_hundred_million_places_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02Nr\x00\x00\x00\x10.")
    tracemalloc.start()
    try:
        assert load_plain(path) is None
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
