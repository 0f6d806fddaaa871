"""Files: whole or not at all, never through a link, one owner at a time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest

from osp import UserError
from osp.files import append_text, locked, make_folder, owned, read_arrays, write_arrays, write_bytes, write_text


def test_a_link_is_replaced_and_what_it_points_to_is_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "result.json").symlink_to(victim)
    write_text(tmp_path / "result.json", "new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "result.json").read_text() == "new"
    assert not (tmp_path / "result.json").is_symlink()


def test_nothing_is_appended_locked_or_created_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(UserError, match="it is a link"):
        append_text(tmp_path / "link", "more")
    with pytest.raises(UserError, match="is a link"), owned(tmp_path / "link", "busy"):
        pass
    with pytest.raises(UserError, match="is a link"):
        make_folder(tmp_path / "folder")
    assert victim.read_text() == "mine"


def test_an_error_leaves_the_earlier_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"good")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device\. The earlier x is untouched\. Free some space"):
        write_bytes(path, b"newer")
    assert path.read_bytes() == b"good"
    assert os.listdir(tmp_path) == ["x"]


def test_the_earlier_file_can_be_kept_under_another_name(tmp_path: Path) -> None:
    for content in (b"1", b"2", b"3"):
        write_bytes(tmp_path / "last", content, earlier=tmp_path / "previous")
    assert ((tmp_path / "last").read_bytes(), (tmp_path / "previous").read_bytes()) == (b"3", b"2")


def test_one_process_at_a_time_owns_a_lock_and_a_dead_one_gives_it_back(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from osp.files import owned\n"
    code += "with owned(Path(sys.argv[1]), 'busy'):\n    print('held', flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="busy"), owned(tmp_path / "lock", "busy"):
        pass
    other.kill()
    other.communicate()
    with owned(tmp_path / "lock", "busy"):
        assert (tmp_path / "lock").exists()


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_lock_file_left_behind_is_not_waited_for_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, entered = tmp_path / "lock", []
    with locked(path):
        pass
    assert path.exists()  # whoever can lock leaves the file

    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    fcntl = pytest.importorskip("fcntl")
    with monkeypatch.context() as disk:
        disk.setattr(fcntl, "flock", none)
        with locked(path):
            entered.append("a disk without locks")
    monkeypatch.setattr(filelock, "FileLock", filelock.SoftFileLock)
    with locked(path):
        entered.append("a system without locks")
    assert len(entered) == 2


@pytest.mark.timeout(60)
def test_a_lock_that_another_holds_is_waited_for(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from osp.files import locked\n"
    code += "with locked(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(1.5); Path(sys.argv[2]).touch()"
    command = [sys.executable, "-c", code, str(tmp_path / "lock"), str(tmp_path / "done")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with locked(tmp_path / "lock"):
            assert (tmp_path / "done").exists()


@pytest.mark.parametrize("header", ["{'descr': (", "{", "'", "0" * 50, "\\"])
def test_arrays_with_a_header_that_is_none_are_a_sentence(header: str, tmp_path: Path) -> None:
    write_arrays(tmp_path / "good.npz", {"a": np.arange(3)})
    text = header.ljust(117).encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as file:
        file.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(24))
    assert read_arrays(tmp_path / "good.npz")["a"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"."):
        read_arrays(tmp_path / "bad.npz")


def test_arrays_are_written_by_an_older_numpy_and_objects_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = np.savez

    def older(file: Any, *arrays: np.ndarray, **named: np.ndarray) -> None:
        assert "allow_pickle" not in named  # before 2.2 it would become an array of that name
        newer(file, *arrays, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(np, "savez", older)
    write_arrays(tmp_path / "a.npz", {"rows": np.arange(3)})
    assert read_arrays(tmp_path / "a.npz")["rows"].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="names holds Python objects"):
        write_arrays(tmp_path / "b.npz", {"names": np.array(["a", None], dtype=object)})
    assert not (tmp_path / "b.npz").exists()


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_disk_without_locks_is_refused_and_no_lock_file_of_a_dead_process_counts_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", none)
    for left_behind in (False, True):
        if left_behind:
            (tmp_path / "lock").touch()
        with pytest.raises(UserError, match="its disk has no file locks"), owned(tmp_path / "lock", "busy"):
            pass
