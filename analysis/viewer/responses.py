"""What the viewer's responses have in common: JSON that browsers do not store, problem documents (RFC 9457), security
headers, and the check of a request's origin and token.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import Protocol
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollyard.records.errors import Failure
from rollyard.records.types import Problem, Record

NO_STORE = {"cache-control": "no-store"}
COOKIE = "rollyard_viewer"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


async def json_response(make: Callable[[], Record]) -> Response:
    """Call `make` in a thread, because it may read files, and return its record."""
    return json_body(await run_in_threadpool(lambda: make().model_dump_json()))


def json_body(body: str | bytes) -> Response:
    return Response(body, media_type="application/json", headers=NO_STORE)


def problem(status: int, title: str, detail: str, instance: str = "") -> Response:
    found = Problem(status=status, title=title, detail=detail, instance=instance, server="ng_viewer")
    return Response(found.model_dump_json(exclude_none=True), status, media_type="application/problem+json")


class ViewerAccess(Protocol):
    """Decides whether a request is allowed, as all servers of Rollyard do (services/http/access.py)."""

    def refusal(self, scope: Scope) -> Failure | None: ...


class ViewerAccessMiddleware:
    """Checks a request's origin (`Access`) and its token, if one is configured."""

    def __init__(self, app: ASGIApp, access: ViewerAccess, *, token: str | None = None) -> None:
        self._app = app
        self._access = access
        self._token = token
        self._name = f"{COOKIE}_{secrets.token_hex(4)}"
        """Has a random suffix, because cookies ignore ports and two viewers on one host must not share a cookie."""
        self._cookie = secrets.token_urlsafe(32)
        """A random value rather than the token, because browsers also send the cookie to other ports of the host."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        rejection = self._rejection(scope) or self._redirect_with_cookie(scope)
        await (rejection or self._app)(scope, receive, guarded)

    def _rejection(self, scope: Scope) -> Response | None:
        if failure := self._access.refusal(scope):
            found = failure.problem
            return problem(found.status, found.title, found.detail, str(scope["path"]))
        if self._token is None or self._is_authorized(scope, Headers(scope=scope), self._token):
            return None
        return problem(401, "unauthorized", "Open the URL printed by ng_viewer, including its ?token=...")

    def _is_authorized(self, scope: Scope, headers: Headers, token: str) -> bool:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        query_token = dict(_query(scope)).get("token", "")
        cookie = cookie_parser(headers.get("cookie", "")).get(self._name, "")
        return _same(cookie, self._cookie) or _same(bearer, token) or _same(query_token, token)

    def _redirect_with_cookie(self, scope: Scope) -> Response | None:
        """Redirect a request that has the token in its URL to the same URL without the token, and set the cookie."""
        query = _query(scope)
        if self._token is None or scope["method"] != "GET" or "token" not in dict(query):
            return None
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # Strip leading slashes, so that the path cannot be parsed as another host: `//elsewhere`.
        path = "/" + str(scope["path"]).lstrip("/\\")
        response = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        secure = scope.get("scheme") == "https"
        response.set_cookie(self._name, self._cookie, secure=secure, httponly=True, samesite="strict", path="/")
        return response


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
