"""Fetching, against a real server on this machine that can also be slow, wrong or gone; and archives, which stay inside
their folder and appear whole or not at all."""

from __future__ import annotations

import hashlib
import io
import random
import socket
import stat
import struct
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import osp.data
from osp.data import Remote
from osp.data import fetch as fetching
from osp.data.fetch import download, extract, fetch
from osp.data.sources import mnist
from osp.errors import UserError

CONTENT = bytes(range(256)) * 8000


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.cut_after: list[int] = []
        """For the next requests, after how many bytes the connection breaks."""
        self.ranges: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        content = server.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        server.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if wanted and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + server.cut_after.pop(0) if server.cut_after else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    with _Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        running.files["file.bin"] = CONTENT
        monkeypatch.setenv("OSP_MIRROR", running.url)
        yield running
        running.shutdown()
        thread.join()


PUBLISHED = [name for name in osp.data.available() if osp.data.get(name).remotes]
GOOD = Remote("https://example.org/file.bin", hashlib.md5(CONTENT).hexdigest())


def test_a_good_file_arrives_whole_with_progress(server: _Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    path = fetch(GOOD, tmp_path / "sub", progress=lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT), "Fetching file.bin")
    assert [item.name for item in path.parent.iterdir()] == ["file.bin"]


def test_a_wrong_checksum_is_refused_and_leaves_nothing(server: _Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not the published file \(MD5"):
        fetch(Remote(GOOD.url, "0" * 32), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_connection_is_continued_where_it_broke(server: _Server, tmp_path: Path) -> None:
    server.cut_after = [100_000, 200_000]
    assert fetch(GOOD, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=300000-"]


def test_a_connection_that_keeps_breaking_is_an_error_and_the_next_call_goes_on(
    server: _Server, tmp_path: Path
) -> None:
    server.cut_after = [1000] * 3
    with pytest.raises(UserError, match="broke off 3 times"):
        fetch(GOOD, tmp_path)
    assert not (tmp_path / "file.bin").exists()
    assert fetch(GOOD, tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=3000-"


@pytest.mark.parametrize("old", [b"old rubbish", bytes(len(CONTENT)), bytes(len(CONTENT) + 5)])
def test_a_wrong_part_of_an_earlier_attempt_is_thrown_away(server: _Server, tmp_path: Path, old: bytes) -> None:
    (tmp_path / ".file.bin.part").write_bytes(old)
    assert fetch(GOOD, tmp_path).read_bytes() == CONTENT


def test_a_missing_file_on_the_server_names_the_address(server: _Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing.bin answered 404"):
        fetch(Remote("https://example.org/nothing.bin", ""), tmp_path)


def test_without_a_server_the_error_comes_after_one_try_and_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []
    answer = fetching._answer

    def counted(*given: Any) -> Any:
        tries.append(given)
        return answer(*given)

    monkeypatch.setattr(fetching, "_answer", counted)
    monkeypatch.setenv("OSP_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(UserError) as error:
        download("cifar10", osp.data.get("cifar10").remotes, tmp_path / "data")
    assert len(tries) == 1
    assert "put cifar-10-python.tar.gz (from https://www.cs.toronto.edu/~kriz/) into" in str(error.value)
    assert str(tmp_path / "data") in str(error.value)
    assert not (tmp_path / "data").exists()


def test_a_server_that_never_answers_is_given_up_within_the_time_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OSP_MIRROR", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(UserError, match="no answer within"):
            fetch(GOOD, tmp_path)
        assert time.monotonic() - started < fetching.STALL_SECONDS / 2


def test_loading_a_missing_set_fetches_it(
    server: _Server, tmp_path: Path, real_data: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(real_data)
    raw = real_data("mnist") / "MNIST" / "raw"
    remotes = []
    for remote in mnist.MNIST.remotes:
        server.files[remote.file] = (raw / remote.file).read_bytes()
        remotes.append(Remote(remote.url, hashlib.md5(server.files[remote.file]).hexdigest(), remote.folder))
    # the packed files are the published ones compressed anew, so their sums are other ones
    monkeypatch.setattr(mnist.MNIST, "remotes", tuple(remotes))
    train, test = osp.data.load("mnist", tmp_path)
    assert test is not None
    assert (len(train), len(test), train.variant) == (60_000, 10_000, None)
    assert len(list((tmp_path / "MNIST" / "raw").iterdir())) == 4


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_missing_set_says_which_file_to_put_where(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        osp.data.load(name, tmp_path)
    remote = osp.data.get(name).remotes[0]
    assert remote.file in str(error.value)
    assert str(tmp_path / remote.folder) in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_far_too_large_is_refused(server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LARGEST_FETCHED", 1000)
    with pytest.raises(UserError, match="not the published file"):
        fetch(GOOD, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_server_that_crawls_is_given_up(server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SLOWEST", 10**15)
    monkeypatch.setattr(fetching, "WINDOW", 0.0)
    with pytest.raises(UserError, match="bytes per second"):
        fetch(GOOD, tmp_path)


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
    monkeypatch.setattr(fetching, "LARGEST_UNPACKED", 1 << 20)
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
