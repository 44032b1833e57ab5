"""The explorer's gate: who may ask, and what every answer says about itself.

Only this machine may ask, and only the page that was opened with the token. The page and its files hold nothing secret
and open without it; everything else wants it, in a header, or in the cookie that the first visit sets.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from nrm.extras import extra

with extra("web", "nrm.explore"):
    from starlette.datastructures import Headers, MutableHeaders, QueryParams
    from starlette.requests import cookie_parser
    from starlette.responses import JSONResponse, Response

FRAMED = "; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    f"connect-src 'self'; base-uri 'none'; form-action 'none'{FRAMED}",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OWN = ("same-origin", "none")
"""Where a request may come from, as browsers say it: the page itself, or a person."""

Message = MutableMapping[str, Any]


class Gate:
    """Lets in what comes from the page itself: the right host, no foreign origin or site, and the token.

    The first visit, with the token in its address, is answered with a cookie of that token, which no script can read
    and which requests of other sites do not carry. ``inline`` says that a notebook may show the page in a frame, if it
    knows the token. Every answer carries the security headers.
    """

    def __init__(self, app: Any, hosts: frozenset[str], token: str, inline: bool = False) -> None:
        self._app, self._hosts, self._token, self._inline = app, hosts, token, inline

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        http = scope["type"] == "http"
        visit = http and scope["path"] == "/" and self._known(QueryParams(scope["query_string"]).get("token", ""))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if visit:
                    self._welcome(scope, headers)
            await send(message)

        refusal = self._refusal(scope, visit) if http else "only http is spoken here"
        await (self._app if refusal is None else refused(refusal, 403))(scope, receive, guarded)

    def _known(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())

    def _welcome(self, scope: Message, headers: MutableHeaders) -> None:
        """The cookie of a first visit; with ``inline``, frames of other pages may show it."""
        host = Headers(scope=scope).get("host", "")
        headers.append("Set-Cookie", f"{_cookie(host)}={self._token}; Path=/; HttpOnly; SameSite=Strict")
        if self._inline:
            headers["Content-Security-Policy"] = HEADERS["Content-Security-Policy"].removesuffix(FRAMED)
            del headers["X-Frame-Options"]

    def _refusal(self, scope: Message, visit: bool) -> str | None:
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if host not in self._hosts:
            return "this host is not served"
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{known}" for known in self._hosts}:
            return "requests of other pages are not answered"
        # A link of another page may lead here: what it opens is the empty page, which asks by itself.
        opened = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        opened = opened and (headers.get("sec-fetch-dest") == "document" or (visit and self._inline))
        if headers.get("sec-fetch-site", "none") not in OWN and not opened:
            return "requests of other pages are not answered"
        if path == "/" or path.startswith("/static/"):
            return None
        cookies = cookie_parser(headers.get("cookie", ""))
        given = headers.get("x-token") or cookies.get(_cookie(host), "")
        return (
            None if self._known(given) else "the token is missing or wrong: open the address that nrm.explore printed"
        )


def refused(text: str, status: int) -> Response:
    """An answer that says what was wrong."""
    return JSONResponse({"error": text}, status)


def _cookie(host: str) -> str:
    """The name of the cookie: all ports of a host share theirs, so that it names the port."""
    return f"nrm-{host.rpartition(':')[2]}"
