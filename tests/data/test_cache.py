"""The cache of decoded images: made once, noticed when stale, mended when broken, safe between processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osp.data import cache
from osp.errors import UserError

ROW = (3, 4, 4)


class _Builder:
    def __init__(self, value: int = 7, rows: int = 5000) -> None:
        self.value, self.rows, self.calls = value, rows, 0

    def __call__(self, writer: cache.ArrayWriter) -> dict[str, Any]:
        self.calls += 1
        for _ in range(5):
            writer.append(np.full((self.rows // 5, *ROW), self.value, np.uint8))
        return {"note": self.value}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _get(build: _Builder, fingerprint: str = "a" * 16) -> cache.Cached:
    return cache.cached("test", "key", fingerprint, ROW, build)


def test_the_second_call_maps_what_the_first_one_made(folder: Path) -> None:
    build = _Builder()
    first, second = _get(build), _get(build)
    assert build.calls == 1
    assert isinstance(second.images, np.memmap)
    assert not second.images.flags.writeable
    assert second.images.shape == (5000, *ROW)
    assert second.notes["note"] == 7
    np.testing.assert_array_equal(first.images, second.images)


def test_numpy_itself_can_read_the_array(folder: Path) -> None:
    _get(_Builder())
    (path,) = folder.glob("*.npy")
    assert np.load(path).shape == (5000, *ROW)


def test_another_fingerprint_replaces_the_old_entry(folder: Path) -> None:
    _get(_Builder(1), "a" * 16)
    entry = _get(_Builder(2), "b" * 16)
    assert entry.images[0, 0, 0, 0] == 2
    assert len(list(folder.glob("*.npy"))) == len(list(folder.glob("*.json"))) == 1


def _cut(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _zero_header(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(bytes(64))


def _hole(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size - 50_000)
        file.write(bytes(40_000))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    """One bit, somewhere."""
    content = bytearray(path.read_bytes())
    content[len(content) * 5 // 7] ^= 4
    path.write_bytes(content)


def _garble(path: Path) -> None:
    path.write_text('{"rows": "many"')


def _other_json(path: Path) -> None:
    path.write_text(json.dumps([1, 2]))


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".npy", _cut),
        (".npy", _zero_header),
        (".npy", _hole),
        (".npy", _flip),
        (".npy", _empty),
        (".npy", os.unlink),
        (".json", _garble),
        (".json", _other_json),
        (".json", _empty),
        (".json", os.unlink),
    ],
)
def test_a_damaged_entry_is_made_anew(folder: Path, suffix: str, damage: Any) -> None:
    build = _Builder()
    _get(build)
    (path,) = folder.glob(f"*{suffix}")
    damage(path)
    entry = _get(build)
    assert build.calls == 2
    assert (entry.images == 7).all()


def test_one_flipped_bit_of_a_large_entry_is_noticed(folder: Path) -> None:
    """Wherever it is: spots that are looked at would leave room between them."""

    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        for _ in range(20):
            writer.append(np.full((100, 3, 64, 64), 7, np.uint8))
        return {}

    for place in (0.2, 0.5037, 0.9):
        cache.cached("large", "key", "0" * 16, (3, 64, 64), build)
        (path,) = folder.glob("large*.npy")
        with open(path, "r+b") as file:
            file.seek(int(place * path.stat().st_size) // 192_000 * 192_000 + 130_000)
            file.write(b"\x03")
        assert (cache.cached("large", "key", "0" * 16, (3, 64, 64), build).images == 7).all()


def test_parts_of_a_process_that_was_killed_long_ago_are_cleared_away(folder: Path) -> None:
    _get(_Builder())
    (entry,) = folder.glob("*.npy")
    old, new = entry.with_suffix(".1.partial"), entry.with_suffix(".2.partial")
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (0, 0))
    entry.unlink()
    _get(_Builder())
    assert (old.exists(), new.exists()) == (False, True)


def test_no_two_makers_of_an_entry_write_into_one_file(folder: Path) -> None:
    """Process numbers repeat where containers share a cache; locks may not reach from one to the other."""
    names: list[str] = []

    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        names.extend(path.name for path in folder.glob("*.partial"))
        return {}

    for _ in range(2):
        cache.cached("test", "key", "a" * 16, ROW, build)
        next(folder.glob("*.npy")).unlink()
    assert len(set(names)) == 2


def test_a_build_that_fails_leaves_no_entry(folder: Path) -> None:
    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        writer.append(np.zeros((1, *ROW), np.uint8))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.cached("test", "key", "a" * 16, ROW, build)
    assert [path.suffix for path in folder.iterdir()] == [".lock"]


def test_a_cache_folder_that_cannot_be_made_is_a_plain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="OSP_CACHE"):
        _get(_Builder())


def test_a_full_disk_is_a_plain_error() -> None:
    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="the disk is full"):
        cache.cached("test", "key", "a" * 16, ROW, build)


def test_processes_that_build_the_same_entry_at_once_build_it_once_and_all_read_it(folder: Path) -> None:
    program = """
import sys, time, numpy as np
from osp.data import cache
def build(writer):
    open(sys.argv[1] + "/built", "a").write("x")
    for _ in range(20):
        writer.append(np.full((100, 3, 4, 4), 9, np.uint8)); time.sleep(0.02)
    return {}
entry = cache.cached("test", "key", "a" * 16, (3, 4, 4), build)
assert entry.images.shape == (2000, 3, 4, 4) and (entry.images == 9).all()
"""
    command = [sys.executable, "-c", program, str(folder.parent)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    assert (folder.parent / "built").read_text() == "x"


def test_a_checksum_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert cache.md5_of(path, compute=False) is None
    assert cache.md5_of(path) == "900150983cd24fb0d6963f7d28e17f72"  # RFC 1321
    assert cache.md5_of(path, lambda: pytest.fail("computed again")) == "900150983cd24fb0d6963f7d28e17f72"
    path.write_bytes(b"")
    assert cache.md5_of(path) == "d41d8cd98f00b204e9800998ecf8427e"
    path.write_bytes(b"ab")
    first, times = cache.md5_of(path), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    time.sleep(0.02)  # the system's clock of files ticks every few milliseconds
    path.write_bytes(b"cd")  # another file of the same size and time
    os.utime(path, ns=times)
    assert cache.md5_of(path) != first


def test_a_damaged_book_of_checksums_is_begun_anew(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "checksums.json").write_text("[1, 2")
    (tmp_path / "file").write_bytes(b"abc")
    assert cache.md5_of(tmp_path / "file") == "900150983cd24fb0d6963f7d28e17f72"
    assert cache.md5_of(tmp_path / "file", compute=False) == "900150983cd24fb0d6963f7d28e17f72"
