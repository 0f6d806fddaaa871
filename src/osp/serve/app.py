"""The server's answers: the page, /model, /predict, /labeled/N and /openapi.json.

Uploads stay in memory and are gone with the answer. Nothing is written, and nothing is kept of what was asked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from osp.data.decode import Unreadable
from osp.data.folders import kinds
from osp.errors import printable
from osp.serve.guard import Guard
from osp.serve.line import Line, Uploads
from osp.serve.openapi import BODY_TYPES, DEFAULTS, MOST_NEIGHBORS, description, listed_types
from osp.serve.served import Served, jpeg
from osp.serve.server import LOCAL

MOST_PHOTOS = 64
"""Requests for labeled photos that are worked on or wait."""


@dataclass(frozen=True)
class Limits:
    """What one server takes."""

    bytes: int = 20_000_000
    pixels: int = 50_000_000
    waiting: int = 8
    """Requests that are worked on or wait."""
    seconds: float = 60.0
    """For an upload to arrive."""


def make_app(
    served: Served, limits: Limits | None = None, names: tuple[str, ...] = LOCAL, any_address: bool = False
) -> tuple[Guard, Callable[[], None]]:
    """The application, and what to call when it has ended."""
    server = _Server(served, limits or Limits())
    routes = [
        Route("/", server.page),
        Route("/model", server.model),
        Route("/predict", server.predict, methods=["POST"]),
        Route("/labeled/{number:int}", server.labeled),
        Route("/openapi.json", server.openapi),
    ]
    return Guard(routes, names, any_address), server.close


class _Server:
    def __init__(self, served: Served, limits: Limits) -> None:
        self._served, self._limits = served, limits
        self._line, self._photos = Line(limits.waiting), Line(MOST_PHOTOS)
        self._uploads = Uploads(limits.waiting * limits.bytes, limits.bytes, limits.seconds)
        self._about = {
            **served.about(),
            "formats": list(kinds()),
            "most_bytes": limits.bytes,
            "most_pixels": limits.pixels,
        }
        self._openapi = description(served.names, limits.bytes, limits.pixels)
        self._page, self._policy = page()

    def close(self) -> None:
        self._line.close()
        self._photos.close()

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers={"Content-Security-Policy": self._policy})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self._about)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(self._openapi)

    async def labeled(self, request: Request) -> Response:
        number = request.path_params["number"]
        found = None
        if number < len(self._served.known):
            found = await self._photos.run(request, partial(self._served.photos.show, number))
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
        asked["most_pixels"] = self._limits.pixels
        content = await self._uploads.read(request)
        try:
            said = await self._line.run(request, lambda decode: self._served(content, **asked, decode=decode))
        except Unreadable as error:
            raise HTTPException(400, f"It cannot be read as an image: {printable(error)}.") from None
        return JSONResponse(said)


def page(name: str = "page.html") -> tuple[str, str]:
    """The page, and a policy that lets a browser run its own script and style, and load nothing from anywhere else."""
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
    return text, policy


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
