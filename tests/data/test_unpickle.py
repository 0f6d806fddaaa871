"""Pickles from strangers: data comes in, code does not."""

from __future__ import annotations

import os
import pickle
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
