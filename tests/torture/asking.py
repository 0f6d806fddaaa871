"""Requests to `osp serve`, handed to its application as a server would hand them on, without a network between.

Every answer must be one that the OpenAPI description has for that path and method, with its kind of content; an error
is a JSON object with a sentence.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from osp import UserError
from osp.engine.train import train
from torture.works import recipe

PIECES = (
    *("POST", "GET", "HEAD", "/predict", "/labeled/0", "/labeled/99999999999999999999", "/model", "/openapi.json"),
    *("accept=0.5", "accept=nan", "neighbors=24", "neighbors=-1", "explain=true", "%00", "%f0%28", "a=b&a=c"),
    *(
        "host",
        "origin",
        "http://evil.example",
        "sec-fetch-site",
        "cross-site",
        "content-type",
        "image/tiff",
        "text/html",
    ),
    *("content-length", "transfer-encoding", "chunked", "127.0.0.1:8000", "[::1]", "localhost."),
)
GOOD = {
    "method": "POST",
    "path": "/predict",
    "query": "accept=0.9&neighbors=3&explain=false",
    "headers": [["host", "127.0.0.1:8000"], ["content-type", "image/png"], ["origin", "http://127.0.0.1:8000"]],
    "parts": 3,
}

_apps: dict[Path, tuple[Any, dict[str, Any]]] = {}


def make_request(folder: Path) -> None:
    kept = folder.parent / "kept-served"
    if not kept.exists():
        train(recipe("supervised", 4), kept)
    (folder / "request.json").write_text(json.dumps(GOOD), "utf-8")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    (folder / "body").write_bytes(content.getvalue())


def ask(folder: Path) -> int:
    """The status of the answer; a UserError where the request is refused as described, AssertionError otherwise."""
    app, described = _app(folder.parent / "kept-served")
    try:
        asked = {**GOOD, **json.loads((folder / "request.json").read_bytes())}
    except (ValueError, TypeError, RecursionError):
        asked = {**GOOD, "query": (folder / "request.json").read_bytes()[:200].decode("latin-1")}
    body = (folder / "body").read_bytes()
    status, headers, content = asyncio.run(_answered(app, _scope(asked), body, _number(asked["parts"])))
    assert status < 500 or status == 503, f"status {status}"
    path, method = str(_scope(asked)["path"]), str(_scope(asked)["method"])
    known = described["paths"].get("/labeled/{number}" if path.startswith("/labeled/") else path, {})
    operation = known.get(method.lower())
    if operation is not None:
        assert str(status) in operation["responses"], f"{method} {path} gave {status}, which is not described"
        kinds = operation["responses"][str(status)]["content"]
        assert headers.get("content-type", "").partition(";")[0] in kinds, f"{headers} is none of {list(kinds)}"
    if status >= 400 and method != "HEAD":
        sentence = json.loads(content)["error"]
        assert sentence, "an error without a sentence"
        raise UserError(f"{status}: {sentence}")
    return status


def _app(run: Path) -> tuple[Any, dict[str, Any]]:
    if run not in _apps:
        from osp.serve.app import make_app
        from osp.serve.served import open_served

        app, _ = make_app(open_served(run))
        _, _, content = asyncio.run(_answered(app, _scope({**GOOD, "method": "GET", "path": "/openapi.json"}), b"", 1))
        _apps[run] = (app, json.loads(content))
    return _apps[run]


def _scope(asked: dict[str, Any]) -> dict[str, Any]:
    """What a server would make of it: bytes in headers and query, a path that is decoded."""
    headers = asked["headers"] if isinstance(asked["headers"], list) else []
    pairs = [each for each in headers if isinstance(each, list) and len(each) == 2]
    path = "/" + str(asked["path"]).lstrip("/")[:4000]
    return {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""},
        "method": str(asked["method"])[:20],
        "path": path,
        "raw_path": _bytes(path),
        "query_string": _bytes(str(asked["query"])[:4000]),
        "headers": [(_bytes(str(name)).lower(), _bytes(str(value))) for name, value in pairs],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
    }


def _bytes(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 1 <= value <= 20 else 1


async def _answered(app: Any, scope: dict[str, Any], body: bytes, parts: int) -> tuple[int, dict[str, str], bytes]:
    size = max(1, -(-len(body) // parts))
    blocks = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    messages = [{"type": "http.request", "body": each, "more_body": True} for each in blocks]
    messages[-1]["more_body"] = False
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()  # the client stays and waits for its answer
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async with asyncio.timeout(60):
        await app(scope, receive, send)
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return int(sent[0]["status"]), headers, b"".join(message.get("body", b"") for message in sent[1:])
