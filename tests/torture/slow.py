"""Slow clients of `osp serve` and `osp label`: many that are silent, dribble, do not read or leave, and one that wants
an answer."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from helpers.labeling import make_pile, start
from osp.engine.train import train
from torture.load import serving
from torture.works import recipe

CROWD = 900
"""More than a server has connections."""
LONGEST = 10.0
"""Seconds in which whoever asks must be answered, told to come back or not."""
SECONDS = 20.0
"""How long the crowd stays: more than the server waits for any of them."""


@dataclass(frozen=True)
class Target:
    """A running server: how it is asked well, and what the crowd sends."""

    port: int
    process: int
    good: bytes
    """A request with a body."""
    large: bytes
    """A request whose answer is large."""
    costly: bytes
    """A request that takes a while."""


Manner = Callable[[Target, threading.Event], None]


def cases(base: Path, seconds: float = SECONDS) -> Iterator[tuple[str, Callable[[], str]]]:
    for name, target in (("serve", _served), ("label", _labeled)):
        for manner in (silent, in_the_head, in_the_body, unread, leaving):
            words = f"slow clients of {name}, {manner.__name__.replace('_', ' ')}"
            place = base / f"{name}-{manner.__name__}"
            yield words, lambda t=target, m=manner, p=place: crowded(t, m, p, seconds)  # type: ignore[misc]


def crowded(
    target: Callable[[Path], contextlib.AbstractContextManager[Target]], manner: Manner, base: Path, seconds: float
) -> str:
    """Ask well while a crowd does otherwise; afterwards the server must be as if nobody had been there."""
    base.mkdir(parents=True)
    with target(base) as server:
        over = threading.Event()
        crowd = threading.Thread(target=manner, args=(server, over))
        crowd.start()
        waits, fault = [], ""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end and not fault:
                started = time.monotonic()
                fault = _answered(server)
                waits.append(time.monotonic() - started)
                time.sleep(0.3)
        finally:
            over.set()
            crowd.join()
        until = time.monotonic() + 15
        while (files := len(os.listdir(f"/proc/{server.process}/fd"))) > 60 and time.monotonic() < until:
            time.sleep(0.2)
    print(f"  {manner.__name__}: {len(waits)} asked, answered after {np.median(waits):.2f} s, {max(waits):.2f} at most")
    if fault or max(waits) > LONGEST:
        return fault or f"no answer for {max(waits):.0f} s"
    return f"{files} files are still open" if files > 60 else ""


def _answered(server: Target) -> str:
    """Ask as a browser would, again where it is told to, until there is an answer."""
    begun, said = time.monotonic(), "nothing"
    while time.monotonic() - begun < LONGEST:
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=LONGEST) as link:
                link.sendall(server.good)
                answer = http.client.HTTPResponse(link)
                answer.begin()
                answer.read()
            said = str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            said = type(error).__name__
        if said == "200":
            return ""
        time.sleep(0.3)
    return f"no answer, but {said}"


# What the crowd does


def silent(server: Target, over: threading.Event) -> None:
    """Connect, say nothing, connect again where that is ended."""
    _trickle(server, over, b"", b"")


def in_the_head(server: Target, over: threading.Event) -> None:
    """A byte of the head every other second."""
    _trickle(server, over, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-", b"a")


def in_the_body(server: Target, over: threading.Event) -> None:
    """A byte of the body every other second."""
    head, _, body = server.good.partition(b"\r\n\r\n")
    _trickle(server, over, head + b"\r\n\r\n" + body[:1], body[1:2])


def unread(server: Target, over: threading.Event) -> None:
    """Ask for large answers, one after the other on one connection, and read none."""
    _trickle(server, over, server.large * 200, b"")


def leaving(server: Target, over: threading.Event) -> None:
    """Ask for what takes a while, or only half of it, and leave."""
    while not over.is_set():
        for request in (server.costly, server.costly[: len(server.costly) // 2], server.good, server.large) * 10:
            with contextlib.suppress(OSError), _connected(server) as link:
                link.settimeout(5)
                link.sendall(request)
                over.wait(0.01)


def _trickle(server: Target, over: threading.Event, first: bytes, then: bytes) -> None:
    links: list[socket.socket] = []
    try:
        while not over.is_set():
            while len(links) < CROWD and not over.is_set():
                try:
                    links.append(_connected(server))
                    links[-1].sendall(first)
                except BlockingIOError:
                    continue
                except OSError:
                    break
            over.wait(2)
            links = [link for link in links if _alive(link, then)]
    finally:
        for link in links:
            link.close()


def _connected(server: Target) -> socket.socket:
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(2)
    link.connect(("127.0.0.1", server.port))
    link.setblocking(False)
    return link


def _alive(link: socket.socket, more: bytes) -> bool:
    try:
        link.send(more)
        if link.recv(1, socket.MSG_PEEK):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    link.close()
    return False


# Servers


def _request(method: str, path: str, body: bytes = b"", kind: str = "image/png") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _photo(side: int) -> bytes:
    made = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(made, "PNG")
    return made.getvalue()


@contextmanager
def _served(base: Path) -> Iterator[Target]:
    train(recipe("supervised", 4), base / "run")
    with serving(base / "run") as (port, process):
        good = _request("POST", "/predict?explain=false&neighbors=0", _photo(60))
        costly = _request("POST", "/predict", _photo(2000))
        yield Target(port, process, good, _request("GET", "/"), costly)


@contextmanager
def _labeled(base: Path) -> Iterator[Target]:
    make_pile(base / "pile", 60)
    (base / "pile" / "large.png").write_bytes(_photo(2000))
    server = start(base)
    try:
        while (question := json.loads(server.ask("/state")[1])["question"]) is None:
            time.sleep(0.1)
        skipped = json.dumps({"photos": [], "others": question["photos"], "name": ""}).encode()
        good = _request("POST", f"/answer?token={server.token}", skipped, "application/json")
        large = _request("GET", f"/photo/0?size=large&token={server.token}")
        costly = _request("GET", f"/state?version=999999999&token={server.token}") + large * 5
        yield Target(server.port, server.process.pid, good, large, costly)
    finally:
        server.process.kill()
        server.process.communicate()
