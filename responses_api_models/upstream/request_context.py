"""The headers and query string that a call forwards to the endpoint, and the headers that it returns to the caller.

Cookies, tracing headers and affinity headers are forwarded unchanged in both directions; the query string is forwarded
to the endpoint. A load balancer or router between this server and the engines therefore works as if clients called it
directly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Self

from rollyard.responses_api_models.upstream.replicas import Affinity, Endpoint
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpResponse
from rollyard.services.server.settings import is_secret

_IN = frozenset({"cookie", "traceparent", "tracestate", "baggage"})
_NOT_IN = ("x-rollyard-", "x-stainless-", "x-forwarded-", "x-real-ip")
_OUT = frozenset({"retry-after", "openai-processing-ms", "openai-version", "openai-organization"})
_NOT_OUT = ("x-rollyard-", "x-content-", "x-frame-")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class RequestContext:
    """The context of one call. All requests of the call go to the same engine as long as it responds."""

    def __init__(self, headers: Mapping[str, str], affinity: Affinity | None = None, query: str = "") -> None:
        self.headers = headers
        self.affinity = affinity
        self.query = query
        """The query string of the caller's URL, including the question mark."""
        self.endpoint: Endpoint | None = None
        """The endpoint that sent the latest response; None before the first response."""
        self.answer_headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, call: RawRequest, cache_key: object = None) -> Self:
        """Create the context of `call`. `cache_key` is the body's `prompt_cache_key`, for calls without an episode."""
        headers = dict(_forwarded(call.headers))
        affinity = None
        if episode := headers.get(EPISODE_HEADER):
            affinity = Affinity(episode)
        elif isinstance(cache_key, str) and cache_key:
            affinity = Affinity(cache_key, binding=False)
        return cls(headers, affinity, _query(call.query))

    @property
    def url(self) -> str | None:
        """URL of the endpoint that sent the latest response; None before the first response."""
        return self.endpoint.url if self.endpoint else None

    def record_response(self, answer: HttpResponse) -> None:
        """Store the response headers that are returned to the caller."""
        kept = [
            (name.lower().encode(), _bytes(value))
            for name, value in answer.headers.items()
            if _passes(name.lower(), _OUT, _NOT_OUT) and _sendable(name, value)
        ]
        cookies = [(b"set-cookie", _bytes(cookie)) for cookie in answer.cookies if _sendable("", cookie)]
        self.answer_headers = (*kept, *cookies)


def _bytes(value: str) -> bytes:
    """Restore a header value's bytes: Rollyard's own connections decode headers as Latin-1, aiohttp as UTF-8."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape")


def _sendable(name: str, value: str) -> bool:
    """Return False for a header that is invalid in an HTTP response."""
    return name.isascii() and not _CONTROL.search(value)


def _query(query: bytes) -> str:
    pairs = [pair for pair in query.decode("latin-1").split("&") if pair and not is_secret(pair.partition("=")[0])]
    return "?" + "&".join(pairs) if pairs else ""


def _forwarded(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    for raw_name, value in headers:
        name = raw_name.decode("latin-1").lower()
        if _passes(name, _IN, _NOT_IN):
            yield name, value.decode("latin-1")


def _passes(name: str, named: frozenset[str], barred: tuple[str, ...]) -> bool:
    if name in named:
        return True
    # A caller's x-api-key is meant for this server, not for the endpoint, which has its own.
    return name.startswith("x-") and not name.startswith(barred) and not is_secret(name.replace("-", "_"))
