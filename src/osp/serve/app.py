"""The server's answers: the page, /model, /predict, /labeled/N and /openapi.json.

Uploads stay in memory and are gone with the answer. Nothing is written, and nothing is kept of what was asked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from osp.data.decode import Unreadable
from osp.data.folders import kinds
from osp.errors import UserError, printable
from osp.serve.guard import Guard
from osp.serve.line import Line, Uploads
from osp.serve.openapi import BODY_TYPES, DEFAULTS, MOST_NEIGHBORS, description, listed_types
from osp.serve.served import Served, jpeg
from osp.serve.server import LOCAL

UPLOAD = 60.0
"""Seconds for an upload to arrive."""
MOST_PHOTOS = 64
"""Requests for labeled photos that are worked on or wait."""


def make_app(
    served: Served,
    names: tuple[str, ...] = LOCAL,
    any_address: bool = False,
    *,
    most_bytes: int = 20_000_000,
    most_pixels: int = 50_000_000,
    waiting: int = 8,
) -> tuple[Guard, Callable[[], None]]:
    """The application, and what to call when it has ended; `waiting` requests are worked on or wait."""
    server = _Server(served, most_bytes, most_pixels, waiting)
    limits = {"formats": list(kinds()), "most_bytes": most_bytes, "most_pixels": most_pixels}
    routes = [
        Route("/", page("page.html"), methods=["GET"]),
        Route("/model", JSONResponse({**served.about(), **limits}), methods=["GET"]),
        Route("/predict", server.predict, methods=["POST"]),
        Route("/labeled/{number:int}", server.labeled),
        Route("/openapi.json", JSONResponse(description(served.names, most_bytes, most_pixels)), methods=["GET"]),
    ]
    return Guard(routes, names, any_address), server.close


class _Server:
    def __init__(self, served: Served, most_bytes: int, most_pixels: int, waiting: int) -> None:
        self._served, self._most_pixels = served, most_pixels
        self._line, self._photos = Line(waiting), Line(MOST_PHOTOS)
        self._uploads = Uploads(waiting * most_bytes, most_bytes, UPLOAD)

    def close(self) -> None:
        self._line.close()
        self._photos.close()

    async def labeled(self, request: Request) -> Response:
        number = request.path_params["number"]
        found = None
        if number < len(self._served.known):
            found = await self._photos.run(request, partial(self._served.show, number))
        if found is None:
            raise HTTPException(404, f"There is no labeled photo {number} to show.")
        return Response(jpeg(found), media_type="image/jpeg")

    async def predict(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "none").partition(";")[0].strip().lower()
        if kind not in BODY_TYPES:
            raise HTTPException(
                415,
                "Send the image itself (curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg'), as one of "
                f"{listed_types()}.",
            )
        asked = parameters(request.query_params.multi_items())
        asked["most_pixels"] = self._most_pixels
        content = await self._uploads.read(request)
        try:
            said = await self._line.run(request, lambda decode: self._served(content, **asked, decode=decode))
        except Unreadable as error:
            raise HTTPException(400, f"It cannot be read as an image: {printable(error)}.") from None
        except UserError as error:
            raise HTTPException(422, printable(error)) from None
        return JSONResponse(said)


def page(name: str) -> HTMLResponse:
    """A page with a policy that lets a browser run its own script and style, and load nothing from anywhere else."""
    text = files("osp.serve").joinpath(name).read_text("utf-8")
    hashes = {}
    for tag in ("script", "style"):
        inner = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        sums = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in inner]
        hashes[tag] = " ".join(f"'sha256-{each}'" for each in sums)
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src 'self' blob: data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


_FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "explain": (lambda given: isinstance(given, bool), "true or false"),
    "accept": (lambda given: isinstance(given, float) and 0 < given < 1, "a share between 0 and 1, such as 0.95"),
    "neighbors": (
        lambda given: type(given) is int and 0 <= given <= MOST_NEIGHBORS,
        f"a whole number from 0 to {MOST_NEIGHBORS}",
    ),
}
"""Of the parameters of a question, written as in JSON: what fits, and in words."""


def parameters(given: list[tuple[str, str]]) -> dict[str, Any]:
    """The parameters of a question; what is unknown, doubled or does not fit is refused."""
    asked = dict(DEFAULTS)
    names = [name for name, _ in given]
    for name, text in given:
        if name not in DEFAULTS:
            raise HTTPException(422, f"The parameter {printable(name[:80])!r} is unknown: {', '.join(DEFAULTS)}.")
        if names.count(name) > 1:
            raise HTTPException(422, f"The parameter {name!r} is there {names.count(name)} times.")
        fits, wanted = _FITS[name]
        try:
            asked[name] = json.loads(text if text == text.strip() else "")
        except (ValueError, RecursionError):
            asked[name] = None
        if not fits(asked[name]):
            raise HTTPException(422, f"{name}={printable(text[:80])}: {wanted}.")
    return asked
