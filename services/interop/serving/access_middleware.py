"""Restricts who may use a served environment: HTTP requests and WebSocket connections alike."""

from __future__ import annotations

import hmac
from collections.abc import MutableMapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.access.request_checks import Access


class AccessMiddleware:
    """Checks the origin of a request (`Access`), or its token if one is configured."""

    def __init__(self, app: ASGIApp, access: Access, *, token: str | None = None) -> None:
        self._app = app
        self._access = access
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or (failure := self._refusal(scope)) is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await JSONResponse({"detail": failure.problem.detail}, failure.problem.status)(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": failure.problem.detail[:120]})

    def _refusal(self, scope: MutableMapping[str, Any]) -> Failure | None:
        if self._token is None:
            # A WebSocket opens with a GET request, but its scope has no method.
            return self._access.refusal({"method": "GET", **scope})
        given = {name: value for name, value in scope["headers"] if name in (b"authorization", b"x-api-key")}
        expected = self._token.encode()
        for value in given.values():
            if hmac.compare_digest(value.removeprefix(b"Bearer "), expected):
                return None
        detail = "the token is missing or wrong; expected the header Authorization: Bearer <token>, or X-API-Key"
        return Failure(FailureKind.UNAUTHORIZED, detail)
