"""Listening: on this machine alone unless told otherwise, until Ctrl-C."""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from osp.errors import UserError

LOCAL = ("localhost", "127.0.0.1", "::1")
OPEN_TO_OTHERS = (
    "Anybody who can reach this machine can use the model and look at the labeled photos: there is no password."
)

CONNECTIONS = 768
"""Open at once: more than may be idle, upload or wait, for those that are just being ended. Beyond them uvicorn itself
refuses, without a sentence."""


def serve(
    run: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    allow_hosts: Sequence[str] = (),
    most_bytes: int = 20_000_000,
    most_pixels: int = 50_000_000,
    waiting: int = 8,
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
) -> None:
    """Answer questions about images by the model of a run, until interrupted."""
    from osp.serve.app import make_app
    from osp.serve.served import open_served

    with opened(host, port) as (door, address, names, alone):  # first: a port in use is told before a model is loaded
        served = open_served(run)
        served.warm_up()
        limits = {"most_bytes": most_bytes, "most_pixels": most_pixels, "waiting": waiting}
        app, close = make_app(served, (*names, *allow_hosts), not alone, **limits)
        if not alone:
            warn(OPEN_TO_OTHERS)
        say(f"Serving on {address}   (Ctrl-C ends it)")
        run_app(app, door, close)
    say("Stopped.")


@contextlib.contextmanager
def opened(host: str, port: int) -> Iterator[tuple[socket.socket, str, tuple[str, ...], bool]]:
    """A listening socket, its address for a browser, the names under which it may be asked, and whether it is reached
    from this machine alone."""
    with contextlib.closing(listen(host, port)) as door:
        own, number = door.getsockname()[:2]
        alone = ipaddress.ip_address(own.partition("%")[0]).is_loopback
        names = (*LOCAL, host, *(() if alone else (socket.gethostname(), socket.getfqdn())))
        shown = host if alone or host not in ("0.0.0.0", "::", "") else socket.gethostname()
        yield door, f"http://{f'[{shown}]' if ':' in shown else shown}:{number}/", names, alone


def run_app(app: Any, door: socket.socket, close: Callable[[], None]) -> None:
    """Answer at this socket until Ctrl-C or SIGTERM, then close."""
    import uvicorn

    from osp.serve.line import Timed

    config = uvicorn.Config(
        app,
        http=Timed,
        log_config=None,
        log_level="error",  # a stranger who sends nonsense fills no terminal
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=5,
    )
    ours = threading.current_thread() is threading.main_thread()
    if ours:  # uvicorn sends it again once all is closed: we end well
        before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with contextlib.suppress(KeyboardInterrupt):  # likewise
            uvicorn.Server(config).run(sockets=[door])
    finally:
        close()
        if ours:
            signal.signal(signal.SIGTERM, before)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or why there is none."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: a number from 0 (any free one) to 65535.")
    try:
        family, *_, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        return socket.create_server(address[:2], family=family, backlog=128)
    except socket.gaierror:
        raise UserError(f"--host {host}: there is no such address on this machine.") from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"Cannot listen on {host} port {port}: {reason}. Name another: --port 0 takes any.") from None
