"""Archives stay inside their folder, and appear whole or not at all."""

from __future__ import annotations

import io
import random
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from osp.data import archives
from osp.data.archives import extract
from osp.errors import UserError


def _tar(path: Path, *members: tuple[str, bytes | None, bytes]) -> Path:
    """Members as (name, content, tar type)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(content or b"")
            info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            tar.addfile(info, io.BytesIO(content or b""))
    return path


def _zip(path: Path, *members: tuple[str, bytes, int]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


REGULAR = stat.S_IFREG | 0o644


def test_tar_and_zip_are_unpacked_with_their_folders(tmp_path: Path) -> None:
    tar = _tar(tmp_path / "a.tar.gz", ("set/x/1", b"one", tarfile.REGTYPE), ("set/2", b"two", tarfile.REGTYPE))
    packed = _zip(tmp_path / "b.zip", ("other/", b"", stat.S_IFDIR | 0o755), ("other/x/1", b"three", REGULAR))
    assert (extract(tar, tmp_path, "set") / "x" / "1").read_bytes() == b"one"
    assert (extract(packed, tmp_path, "other") / "x" / "1").read_bytes() == b"three"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "b.zip", "other", "set"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../evil", tarfile.REGTYPE),
        ("set/../../evil", tarfile.REGTYPE),
        ("/tmp/osp-evil", tarfile.REGTYPE),
        ("C:/evil", tarfile.REGTYPE),
        ("set\\..\\..\\evil", tarfile.REGTYPE),
        ("set/link", tarfile.SYMTYPE),
        ("set/link", tarfile.LNKTYPE),
        ("set/device", tarfile.CHRTYPE),
        ("set/pipe", tarfile.FIFOTYPE),
    ],
)
def test_a_tar_that_leaves_its_folder_or_holds_links_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, kind: bytes
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    archive = _tar(inner / "a.tar.gz", ("set/ok", b"fine", tarfile.REGTYPE), (name, b"", kind))
    with pytest.raises(UserError, match="not unpacked"):
        extract(archive, inner, "set")
    assert [path.name for path in tmp_path.rglob("*")] == ["inner", "a.tar.gz"]


@pytest.mark.parametrize("name", ["../evil", "/tmp/osp-evil", "set/../../evil"])
def test_a_zip_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    archive = _zip(tmp_path / "a.zip", ("set/ok", b"fine", REGULAR), (name, b"x", REGULAR))
    with pytest.raises(UserError, match="outside the folder"):
        extract(archive, tmp_path, "set")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_zip_with_a_link_is_refused(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", ("set/link", b"/etc/passwd", stat.S_IFLNK | 0o777))
    with pytest.raises(UserError, match="a link or device"):
        extract(archive, tmp_path, "set")


def test_a_cut_archive_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    whole = _tar(tmp_path / "whole.tar.gz", ("set/1", bytes(range(256)) * 4000, tarfile.REGTYPE)).read_bytes()
    for name, content in (("a.tar.gz", whole[: len(whole) // 2]), ("b.tar.gz", b""), ("c.zip", b"PK\x03\x04 no zip")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            extract(tmp_path / name, tmp_path, "set")
    assert not (tmp_path / "set").exists()
    assert not list(tmp_path.glob(".*"))


def test_an_archive_without_the_expected_folder_is_refused(tmp_path: Path) -> None:
    archive = _tar(tmp_path / "a.tar.gz", ("else/1", b"one", tarfile.REGTYPE))
    with pytest.raises(UserError, match="no folder 'set'"):
        extract(archive, tmp_path, "set")


def test_an_archive_that_unpacks_to_too_much_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGEST", 1 << 20)
    archive = _tar(tmp_path / "a.tar.gz", ("set/zeros", bytes(5 << 20), tarfile.REGTYPE))
    with pytest.raises(UserError, match="unpacks to more"):
        extract(archive, tmp_path, "set")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def _odd_names(path: Path, name: str) -> None:
    member = tarfile.TarInfo("set/x")
    member.pax_headers = {"path": name}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)


def _odd_zip(path: Path, flags: int, method: int) -> None:
    """A good archive whose headers say that it is encrypted, or packed by a method that nobody knows."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("set/x", b"x" * 100)
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(mark) + place
        content[at : at + 4] = struct.pack("<HH", flags, method)
    path.write_bytes(content)


def _damaged_xz(path: Path) -> None:
    with tarfile.open(path, "w:xz") as archive:
        member = tarfile.TarInfo("set/x")
        member.size = 50_000
        archive.addfile(member, io.BytesIO(random.Random(0).randbytes(50_000)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: _odd_names(path, "set/a\0b"),
        lambda path: _odd_names(path, "set/" + "n" * 5000),
        lambda path: _odd_zip(path, 1, 0),
        lambda path: _odd_zip(path, 0, 99),
        _damaged_xz,
    ],
    ids=["NUL in a name", "endless name", "encrypted", "unknown method", "damaged xz"],
)
def test_an_odd_archive_is_refused_in_a_sentence_and_leaves_nothing(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    archive = tmp_path / "set.archive"
    make(archive)
    with pytest.raises(UserError, match=r"cannot be unpacked|damaged"):
        extract(archive, tmp_path, "set")
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]
