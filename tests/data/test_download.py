"""Fetching, against a real server on this machine that can also be slow, wrong or gone."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import osp.data
from osp.data import Remote
from osp.data import download as downloads
from osp.data.download import download, fetch
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
def server() -> Iterator[_Server]:
    with _Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        running.files["file.bin"] = CONTENT
        yield running
        running.shutdown()
        thread.join()


PUBLISHED = [name for name in osp.data.available() if osp.data.get(name).remotes]
GOOD = Remote("https://example.org/file.bin", hashlib.md5(CONTENT).hexdigest())


def test_a_good_file_arrives_whole_with_progress(server: _Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    path = fetch(GOOD, tmp_path / "sub", base_url=server.url, progress=lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT), "Fetching file.bin")
    assert [item.name for item in path.parent.iterdir()] == ["file.bin"]


def test_a_wrong_checksum_is_refused_and_leaves_nothing(server: _Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not the published file \(MD5"):
        fetch(Remote(GOOD.url, "0" * 32), tmp_path, base_url=server.url)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_connection_is_continued_where_it_broke(server: _Server, tmp_path: Path) -> None:
    server.cut_after = [100_000, 200_000]
    assert fetch(GOOD, tmp_path, base_url=server.url).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=300000-"]


def test_a_connection_that_keeps_breaking_is_an_error_and_the_next_call_goes_on(
    server: _Server, tmp_path: Path
) -> None:
    server.cut_after = [1000] * 3
    with pytest.raises(UserError, match="broke off 3 times"):
        fetch(GOOD, tmp_path, base_url=server.url)
    assert not (tmp_path / "file.bin").exists()
    assert fetch(GOOD, tmp_path, base_url=server.url).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=3000-"


@pytest.mark.parametrize("old", [b"old rubbish", bytes(len(CONTENT)), bytes(len(CONTENT) + 5)])
def test_a_wrong_part_of_an_earlier_attempt_is_thrown_away(server: _Server, tmp_path: Path, old: bytes) -> None:
    (tmp_path / ".file.bin.part").write_bytes(old)
    assert fetch(GOOD, tmp_path, base_url=server.url).read_bytes() == CONTENT


def test_a_missing_file_on_the_server_names_the_address(server: _Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing.bin answered 404"):
        fetch(Remote("https://example.org/nothing.bin", ""), tmp_path, base_url=server.url)


def test_without_a_server_the_error_comes_after_one_try_and_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []
    answer = downloads._answer

    def counted(*given: Any) -> Any:
        tries.append(given)
        return answer(*given)

    monkeypatch.setattr(downloads, "_answer", counted)
    with pytest.raises(UserError) as error:
        download("cifar10", osp.data.get("cifar10").remotes, tmp_path / "data", base_url="http://127.0.0.1:9")
    assert len(tries) == 1
    assert "put cifar-10-python.tar.gz (from https://www.cs.toronto.edu/~kriz/) into" in str(error.value)
    assert str(tmp_path / "data") in str(error.value)
    assert not (tmp_path / "data").exists()


def test_a_server_that_never_answers_is_given_up_within_the_time_allowed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pytest.raises(UserError, match="no answer within"):
            fetch(GOOD, tmp_path, base_url=f"http://127.0.0.1:{silent.getsockname()[1]}", connect_seconds=0.5)
        assert time.monotonic() - started < downloads.STALL_SECONDS / 2


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
    monkeypatch.setenv("OSP_MIRROR", server.url)
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
    monkeypatch.setattr(downloads, "LARGEST", 1000)
    with pytest.raises(UserError, match="not the published file"):
        fetch(GOOD, tmp_path, base_url=server.url)
    assert not any(tmp_path.iterdir())


def test_a_server_that_crawls_is_given_up(server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SLOWEST", 10**15)
    monkeypatch.setattr(downloads, "WINDOW", 0.0)
    with pytest.raises(UserError, match="bytes per second"):
        fetch(GOOD, tmp_path, base_url=server.url)
