"""Listening: on this machine alone unless told otherwise, until Ctrl-C."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from osp.errors import UserError

OPEN_TO_OTHERS = (
    "Anybody who can reach this machine can use the model and look at the labeled photos: there is no password."
)

CONNECTIONS = 512
"""Open at once. Beyond them uvicorn itself refuses, without a sentence; who waits for the model is limited earlier."""


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
    for package in ("starlette", "uvicorn"):
        try:
            import_module(package)
        except ImportError:
            raise UserError(f"osp serve needs the package {package}. Run: pip install 'osp[serve]'") from None
    import uvicorn

    from osp.serve.app import Limits, make_app
    from osp.serve.guard import LOCAL
    from osp.serve.served import open_served

    with contextlib.closing(listen(host, port)) as door:  # first: a port in use is told before a model is loaded
        own, number = door.getsockname()[:2]
        alone = ipaddress.ip_address(own.partition("%")[0]).is_loopback
        served = open_served(run)
        served.warm_up()
        names = (*LOCAL, host, *allow_hosts, *(() if alone else (socket.gethostname(), socket.getfqdn())))
        app, close = make_app(served, Limits(most_bytes, most_pixels, waiting), names, any_address=not alone)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=5,
            )
        )
        if not alone:
            warn(OPEN_TO_OTHERS)
        shown = host if alone or host not in ("0.0.0.0", "::", "") else socket.gethostname()
        say(f"Serving on http://{f'[{shown}]' if ':' in shown else shown}:{number}/   (Ctrl-C ends it)")
        try:
            server.run(sockets=[door])
        except KeyboardInterrupt:  # handed on by uvicorn once all is closed: here it is the way to end well
            pass
        finally:
            close()
    say("Stopped.")


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
