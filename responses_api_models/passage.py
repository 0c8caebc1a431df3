"""Passage: what one incoming call takes along to the endpoint, and what comes back beside the answer.

Cookies, tracing and affinity headers go through unchanged in both directions, and so does the query of the address, so
that a load balancer or a router between this server and the engines works as if nobody stood in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

from services.call import Call
from services.client import EPISODE_HEADER
from services.settings import is_secret
from services.transport import Answer

_IN = frozenset({"cookie", "traceparent", "tracestate", "baggage"})
_NOT_IN = ("x-rollyard-", "x-stainless-", "x-forwarded-", "x-real-ip")
_OUT = frozenset({"retry-after", "openai-processing-ms", "openai-version", "openai-organization"})
_NOT_OUT = ("x-rollyard-", "x-content-", "x-frame-")


class Passage:
    """One call on its way through a model server; all its requests go to the same engine."""

    def __init__(self, headers: Mapping[str, str], episode: str | None = None, query: str = "") -> None:
        self.headers = headers
        self.episode = episode
        self.query = query
        """What the caller put behind its address, with the question mark."""
        self.url: str | None = None
        """Where it goes; chosen at its first request."""
        self.answer_headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, call: Call, episode: str | None = None) -> Self:
        """The passage of `call`; `episode` is what its body says, where no header does."""
        headers = dict(_taken(call.headers))
        return cls(headers, headers.get(EPISODE_HEADER) or episode, _query(call.query))

    def came_back(self, answer: Answer) -> None:
        """Keep what the endpoint said beside its answer."""
        kept = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers.items()
            if _passes(name.lower(), _OUT, _NOT_OUT)
        ]
        self.answer_headers = (*kept, *((b"set-cookie", cookie.encode("latin-1")) for cookie in answer.cookies))


def _query(query: bytes) -> str:
    pairs = [pair for pair in query.decode("latin-1").split("&") if pair and not is_secret(pair.partition("=")[0])]
    return "?" + "&".join(pairs) if pairs else ""


def _taken(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    for raw_name, value in headers:
        name = raw_name.decode("latin-1").lower()
        if _passes(name, _IN, _NOT_IN):
            yield name, value.decode("latin-1")


def _passes(name: str, named: frozenset[str], barred: tuple[str, ...]) -> bool:
    if name in named:
        return True
    # A caller's x-api-key is meant for this server, not for the endpoint, which has its own.
    return name.startswith("x-") and not name.startswith(barred) and not is_secret(name.replace("-", "_"))
