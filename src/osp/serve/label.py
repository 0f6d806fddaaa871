"""The answers of `osp label`: the page, /state, /answer, /undo, /done and /photo/N."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from osp.data.decode import Unreadable, decode
from osp.errors import UserError
from osp.nets.pretrained import Backbone
from osp.photos.labeling import Labeling
from osp.report.album import plain
from osp.serve.app import busy, fault, http_error, page, refused
from osp.serve.guard import LOCAL, Guard
from osp.serve.line import Busy, Refused, Uploads
from osp.serve.served import jpeg
from osp.serve.server import OPEN_TO_OTHERS, address, listen, run_app

SMALL, LARGE = 224, 1400
"""Sides of a photo in the grid and of one looked at, in pixels."""
MOST_BYTES = 100_000
"""Of an answer."""
LONGEST_WAIT = 5.0


class _Pages:
    def __init__(self, labeling: Labeling, done: Callable[[], None], cookie: str, token: str) -> None:
        self._labeling, self._done, self._cookie, self._token = labeling, done, cookie, token
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="osp-photos")
        self._waiters = ThreadPoolExecutor(4, thread_name_prefix="osp-waits")
        self._uploads = Uploads(10 * MOST_BYTES, MOST_BYTES, LONGEST_WAIT)
        self._page, self._policy = page("label.html")
        self._small = lru_cache(2000)(lambda number: self._read(number, SMALL, False))

    def close(self) -> None:
        for pool in (self._readers, self._waiters):
            pool.shutdown(wait=False, cancel_futures=True)

    async def page(self, request: Request) -> Response:
        made = HTMLResponse(self._page, headers={"Content-Security-Policy": self._policy})
        made.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        return made

    async def state(self, request: Request) -> Response:
        """With `version`, once the guesses follow from so many answers, or after a few seconds."""
        version, about = request.query_params.get("version", "0"), request.query_params.get("about", "")
        if not version.isdecimal() or len(version) > 9:
            raise Refused(422, "version is a whole number.")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._waiters, self._labeling.wait, LONGEST_WAIT, int(version))
        return JSONResponse(await loop.run_in_executor(self._waiters, self._labeling.view, about))

    async def answer(self, request: Request) -> Response:
        given = await self._body(request)
        photos, others, name = given.get("photos", ""), given.get("others", []), given.get("name", 0)
        if not (_numbers(photos) and _numbers(others) and isinstance(name, str)):
            raise Refused(422, "An answer is {photos: [numbers], others: [numbers], name: text}.")
        return await self._after(lambda: self._labeling.answer(photos, others, name))

    async def undo(self, request: Request) -> Response:
        await self._body(request)
        return await self._after(lambda: {"again": self._labeling.undo()})

    async def done(self, request: Request) -> Response:
        await self._body(request)
        asyncio.get_running_loop().call_later(0.3, self._done)
        return JSONResponse({"classes": sorted(self._labeling.classes())})

    async def photo(self, request: Request) -> Response:
        number, large = request.path_params["number"], request.query_params.get("size") == "large"
        if number >= len(self._labeling.files):
            raise Refused(404, f"There is no photo {number}.")
        read = (lambda: self._read(number, LARGE, True)) if large else (lambda: self._small(number))
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._readers, read)
        except (Unreadable, OSError):
            raise Refused(404, "The photo is no longer there, or cannot be read.") from None
        return Response(found, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    def _read(self, number: int, side: int, whole: bool) -> bytes:
        return jpeg(plain(decode(self._labeling.files[number], side, whole=whole)))

    async def _body(self, request: Request) -> dict[str, Any]:
        """A JSON object; other kinds could be sent by any page, without asking."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise Refused(415, "Send application/json.")
        content = await self._uploads.read(request)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refused(422, "The body is no JSON object.")
        return found

    async def _after(self, act: Callable[[], dict[str, Any] | None]) -> Response:
        """What is to be seen after an answer that is on the disk."""

        def both() -> dict[str, Any]:
            more = act() or {}
            return {**self._labeling.view(), **more}

        try:
            return JSONResponse(await asyncio.get_running_loop().run_in_executor(self._waiters, both))
        except UserError as error:
            raise Refused(422, str(error)) from None


def _numbers(given: Any) -> bool:
    return isinstance(given, list) and all(type(each) is int and each >= 0 for each in given)


def make_app(
    labeling: Labeling,
    done: Callable[[], None],
    token: str,
    names: tuple[str, ...] = LOCAL,
    any_address: bool = False,
    cookie: str = "osp-label",
) -> tuple[Guard, Callable[[], None]]:
    """The application, and what to call when it has ended."""
    pages = _Pages(labeling, done, cookie, token)
    routes = [
        Route("/", pages.page),
        Route("/state", pages.state),
        Route("/answer", pages.answer, methods=["POST"]),
        Route("/undo", pages.undo, methods=["POST"]),
        Route("/done", pages.done, methods=["POST"]),
        Route("/photo/{number:int}", pages.photo),
    ]
    handlers: dict[Any, Any] = {HTTPException: http_error, Refused: refused, Busy: busy, Exception: fault}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, names, any_address, token, cookie), pages.close


def label(
    labeling: Labeling,
    backbone: Callable[[], Backbone],
    host: str,
    port: int,
    *,
    open_page: bool,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Ask in the browser until the person is done, or Ctrl-C."""
    token = secrets.token_urlsafe(16)
    with contextlib.closing(listen(host, port)) as door:
        own, number = door.getsockname()[:2]
        alone = ipaddress.ip_address(own.partition("%")[0]).is_loopback
        names = (*LOCAL, host, *(() if alone else (socket.gethostname(), socket.getfqdn())))

        def stop() -> None:
            signal.raise_signal(signal.SIGINT)

        app, close = make_app(labeling, stop, token, names, not alone, f"osp-label-{number}")
        place = f"{address(host, number, alone)}?token={token}"
        say(place)
        if not alone:
            warn(OPEN_TO_OTHERS.replace("there is no password", "the address above is the password"))
        labeling.start(backbone)
        if open_page:
            threading.Thread(target=webbrowser.open, args=(place,), daemon=True).start()
        try:
            run_app(app, door)
        finally:
            close()
            labeling.stop()
