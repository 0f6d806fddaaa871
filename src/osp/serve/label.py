"""The answers of `osp label`: the page, /state, /answer, /undo, /done and /photo/N."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import threading
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from osp.data.decode import Unreadable
from osp.data.decode_pool import Decoder
from osp.errors import UserError
from osp.nets.pretrained import Backbone
from osp.photos.labeling import Labeling
from osp.report.album import plain
from osp.serve.app import page
from osp.serve.guard import Guard
from osp.serve.line import Line, Uploads
from osp.serve.served import jpeg
from osp.serve.server import LOCAL, OPEN_TO_OTHERS, opened, run_app

SMALL, LARGE = 224, 1400
"""Sides of a photo in the grid and of one looked at, in pixels."""
MOST_BYTES = 100_000
"""Of an answer."""
LONGEST_WAIT = 5.0
MOST_PHOTOS, MOST_KEPT = 256, 2000
"""Requests for photos that are worked on or wait, and small photos that are kept."""


class _Pages:
    def __init__(self, labeling: Labeling, done: Callable[[], None]) -> None:
        self._labeling, self._done = labeling, done
        self._photos = Line(MOST_PHOTOS, threads=2)
        self._actors = ThreadPoolExecutor(4, thread_name_prefix="osp-acts")
        self._uploads = Uploads(10 * MOST_BYTES, MOST_BYTES, LONGEST_WAIT)
        self._small: dict[int, bytes] = {}

    def close(self) -> None:
        self._photos.close()
        self._actors.shutdown(wait=False, cancel_futures=True)

    async def state(self, request: Request) -> Response:
        """With `version`, once the guesses follow from so many answers, or after a few seconds."""
        version, about = request.query_params.get("version", "0"), request.query_params.get("about", "")
        if not version.isdecimal() or len(version) > 9:
            raise HTTPException(422, "version is a whole number.")
        loop = asyncio.get_running_loop()
        end = loop.time() + LONGEST_WAIT
        while self._labeling.known.answers < int(version) and loop.time() < end and not await request.is_disconnected():
            await asyncio.sleep(0.05)  # no thread waits: those who have gone, or many tabs, would keep out answers
        return _json(await loop.run_in_executor(self._actors, self._labeling.view, about))

    async def answer(self, request: Request) -> Response:
        given = await self._body(request)
        photos, others, name = given.get("photos", ""), given.get("others", []), given.get("name", 0)
        if not (_numbers(photos) and _numbers(others) and isinstance(name, str)):
            raise HTTPException(422, "An answer is {photos: [numbers], others: [numbers], name: text}.")
        return await self._after(lambda: self._labeling.answer(photos, others, name))

    async def undo(self, request: Request) -> Response:
        await self._body(request)
        return await self._after(lambda: {"again": self._labeling.undo()})

    async def done(self, request: Request) -> Response:
        await self._body(request)
        asyncio.get_running_loop().call_later(0.3, self._done)
        return _json({"classes": sorted(self._labeling.classes())})

    async def photo(self, request: Request) -> Response:
        number, large = request.path_params["number"], request.query_params.get("size") == "large"
        if number >= len(self._labeling.files):
            raise HTTPException(404, f"There is no photo {number}.")
        found = None if large else self._small.get(number)
        try:
            if found is None:
                found = await self._photos.run(request, partial(self._read, number, large))
        except (Unreadable, OSError):
            raise HTTPException(404, "The photo is no longer there, or cannot be read.") from None
        if not large:
            self._small[number] = found
            if len(self._small) > MOST_KEPT:
                del self._small[next(iter(self._small))]
        return Response(found, media_type="image/jpeg")

    def _read(self, number: int, large: bool, decode: Decoder) -> bytes:
        return jpeg(plain(decode(self._labeling.files[number], LARGE if large else SMALL, whole=large)))

    async def _body(self, request: Request) -> dict[str, Any]:
        """A JSON object; other kinds could be sent by any page, without asking."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "Send application/json.")
        content = await self._uploads.read(request)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise HTTPException(422, "The body is no JSON object.")
        return found

    async def _after(self, act: Callable[[], dict[str, Any] | None]) -> Response:
        """What is to be seen after an answer that is on the disk."""

        def both() -> dict[str, Any]:
            more = act() or {}
            return {**self._labeling.view(), **more}

        try:
            return _json(await asyncio.get_running_loop().run_in_executor(self._actors, both))
        except UserError as error:
            raise HTTPException(422, str(error)) from None


def _json(found: dict[str, Any]) -> Response:
    """In ASCII: names of files may not be UTF-8."""
    return Response(json.dumps(found, allow_nan=False), media_type="application/json")


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
    pages, shown = _Pages(labeling, done), page("label.html")
    shown.set_cookie(cookie, token, httponly=True, samesite="strict")
    routes = [
        Route("/", shown, methods=["GET"]),
        Route("/state", pages.state),
        Route("/answer", pages.answer, methods=["POST"]),
        Route("/undo", pages.undo, methods=["POST"]),
        Route("/done", pages.done, methods=["POST"]),
        Route("/photo/{number:int}", pages.photo),
    ]
    return Guard(routes, names, any_address, token, cookie), pages.close


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
    with opened(host, port) as (door, address, names, alone):

        def stop() -> None:
            signal.raise_signal(signal.SIGINT)

        app, close = make_app(labeling, stop, token, names, not alone, f"osp-label-{door.getsockname()[1]}")
        place = f"{address}?token={token}"
        say(place)
        if not alone:
            warn(OPEN_TO_OTHERS.replace("there is no password", "the address above is the password"))
        labeling.start(backbone)
        if open_page:
            threading.Thread(target=webbrowser.open, args=(place,), daemon=True).start()
        try:
            run_app(app, door, close)
        finally:
            labeling.stop()
