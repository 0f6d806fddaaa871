"""Who may ask: only pages of this server, and programs on this machine.

A page of anybody's that is open in the same browser can send requests to localhost, and a name of its own can be made
to point there (DNS rebinding). Both are told by headers that a page cannot forge: `Host` must be a name of this server,
`Origin` and `Sec-Fetch-Site`, where a browser sends them, must say that the request comes from its own page.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osp.serve.server import LOCAL

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
LONGEST_PATH = 1000
NOTHING_ALLOWED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))


def _fault(_: Request, __: Exception) -> Response:
    """A fault of ours: the server prints it in its terminal, and does not tell whoever asked."""
    return JSONResponse({"error": "The server made a mistake; its terminal says which."}, 500)


class Guard:
    """An application that refuses what does not come from here, and says in every answer what a browser may do with it.

    Every other refusal is an `HTTPException`, and arrives as {"error": its sentence}.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        names: Iterable[str] = LOCAL,
        any_address: bool = False,
        token: str = "",
        cookie: str = "",
    ) -> None:
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _fault})
        self.names, self.token, self.cookie = frozenset(name.lower().rstrip(".") for name in names), token, cookie
        self.any_address = any_address
        """Whether an address in digits is a name of this server: no DNS can point such a name elsewhere."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Content-Security-Policy", NOTHING_ALLOWED)
            await send(message)

        refusal = self.refusal(scope["method"], scope["path"], Headers(scope=scope)) or self._stranger(scope)
        answer: ASGIApp = self.app
        if refusal is not None:
            status, sentence = refusal
            answer = JSONResponse({"error": sentence}, status)
        await answer(scope, receive, with_headers)

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason, where a request is not answered."""
        if len(path) > LONGEST_PATH:  # also of digits, of which Python reads 4,300
            return 414, "The address is too long."
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(host_name(hosts[0])):
            return 421, "This server does not answer to that Host name; --allow-host NAME adds one."
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != hosts[0].lower():
            return 403, "Requests from other sites are refused."
        opens_page = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opens_page:
            return 403, "Requests from other sites are refused."
        return None

    def _stranger(self, scope: Scope) -> tuple[int, str] | None:
        """A refusal for who does not know the token, where there is one: in the address, or in the cookie that a page
        opened by it was given."""
        given = [value for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name == "token"]
        cookies = cookie_parser(Headers(scope=scope).get("cookie", ""))
        given.append(cookies.get(self.cookie, ""))
        if self.token and not any(secrets.compare_digest(each.encode(), self.token.encode()) for each in given):
            return 403, "Open the address that osp printed: it ends in a token."
        return None

    def _is_ours(self, name: str | None) -> bool:
        return name is not None and (name in self.names or (self.any_address and is_address(name)))


def host_name(header: str) -> str | None:
    """The name in a Host header without its port; None where it is none.

    >>> host_name("LocalHost:8000"), host_name("[::1]:80"), host_name("a@localhost"), host_name("")
    ('localhost', '::1', None, None)
    """
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def is_address(name: str) -> bool:
    """Whether a name is an address in digits.

    >>> is_address("192.168.0.7"), is_address("::1"), is_address("example.org")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
