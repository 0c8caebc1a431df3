"""Engines: one request to every engine behind a model server, what each said, and which of them are lost.

An engine that gives no answer where another does is lost: it leaves the pool, so that model calls go on without it, and
comes back when it holds the policy's weights again (newcomers.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.responses_api_models.upstream.answers import error_message
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.client import PROBLEM_TYPE
from rollyard.services.types import Json

log = logging.getLogger(__name__)

DEV_MODE = "vLLM opens its control endpoints with VLLM_SERVER_DEV_MODE=1 in its environment"


@dataclass(frozen=True, slots=True)
class EngineReply:
    """What one engine answered; a problem of our own where it gave no answer."""

    url: str
    status: int
    body: bytes
    content_type: str = "application/json"
    answered: bool = True
    """False where it gave none."""

    @property
    def ok(self) -> bool:
        """It did what it was asked."""
        return 200 <= self.status < 300

    @property
    def value(self) -> Any:
        """The body as JSON, else as text."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return self.body.decode("utf-8", "replace")

    def shown(self) -> Json:
        """As it stands in an answer of several."""
        return {"url": self.url, "status": self.status, "body": self.value}

    def failure(self, path: str) -> Failure:
        """What it is where it is not `ok`."""
        told = f"{self.url.removesuffix('/v1')}{path} answered {self.status}: {error_message(self.body)}"
        hint = f" ({DEV_MODE})" if self.status == 404 else ""
        kind = Failure if self.answered else EngineUnreachable
        return kind(FailureKind.UPSTREAM_ERROR, told + hint, upstream_status=self.status)


class EngineUnreachable(Failure):
    """An engine could not be asked, or its answer never came: what it did is unknown."""


class EngineGroup:
    """Those of an upstream. Paths stand beside the API's `/v1`."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.lost: dict[str, None] = {}
        """Out of the pool because they gave no answer."""
        self.unresumed: set[str] = set()
        """In the pool, though they gave no answer to a resume: no other one is left."""

    @property
    def urls(self) -> list[str]:
        """Their addresses now."""
        return self._upstream.replicas.urls

    def add(self, url: str) -> None:
        """Calls may go there, too."""
        self.lost.pop(url, None)
        self._upstream.replicas.add(url)

    def forget(self, url: str) -> None:
        """It is gone for good: another one may come up at its address."""
        self.lost.pop(url, None)
        self._upstream.replicas.remove(url)

    def lose(self, url: str, why: str) -> bool:
        """Take it out of the pool; the last one stays. True when it is out."""
        if url in self.urls:
            if len(self.urls) == 1:
                return False
            log.error("%s is out of the pool until it holds the policy's weights again: %s", url, why)
            self._upstream.replicas.remove(url)
            self.lost[url] = None
        return url in self.lost

    async def all(self, urls: Sequence[str], step: Callable[[str], Awaitable[None]]) -> dict[str, Failure]:
        """The step on all of them at once; the failures of those that are still in the pool, by address."""
        results = await asyncio.gather(*(step(url) for url in urls), return_exceptions=True)
        failed: dict[str, Failure] = {}
        for url, result in zip(urls, results, strict=True):
            if isinstance(result, Failure):
                failed[url] = result
            elif isinstance(result, BaseException):
                raise result
        silent = {url: str(failure) for url, failure in failed.items() if isinstance(failure, EngineUnreachable)}
        if len(silent) < len(urls):
            for url, why in silent.items():
                self.lose(url, why)
        return {url: failure for url, failure in failed.items() if url in self.urls}

    async def each(self, method: str, path: str, body: bytes = b"") -> list[EngineReply]:
        """What each of them says, asked all at once and once only. None is left out, whatever happens to another."""
        if not self.urls:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        return await asyncio.gather(*(self.ask(url, method, path, body) for url in self.urls))

    async def each_does(self, path: str, body: bytes = b"") -> list[EngineReply]:
        """As `each`, with a POST that changes them: one that gives no answer where another does is lost."""
        said = await self.each("POST", path, body)
        if any(one.answered for one in said):
            for one in said:
                if not one.answered:
                    self.lose(one.url, str(one.failure(path)))
        return said

    async def ask(
        self, url: str, method: str, path: str, body: bytes = b"", timeout_s: float | None = None
    ) -> EngineReply:
        """What one of them says."""
        try:
            answer = await self._upstream.send(method, url, f"/..{path}", body, timeout_s)
        except Failure as failure:
            problem = failure.problem
            return EngineReply(url, problem.status, problem.model_dump_json().encode(), PROBLEM_TYPE, False)
        return EngineReply(url, answer.status, answer.body, answer.headers.get("content-type") or "text/plain")

    async def step(self, url: str, path: str, body: Json | None = None, timeout_s: float | None = None) -> Any:
        """A POST that may be repeated, with what it answered. Raises Failure."""
        sent = orjson.dumps(body) if body is not None else b""
        said = await self.ask(url, "POST", path, sent, timeout_s)
        if said.status in _BROKEN and not said.answered:
            said = await self.ask(url, "POST", path, sent, timeout_s)
        if not said.ok:
            raise said.failure(path)
        return said.value


_BROKEN = (502, 503)
"""A connection that broke or was not made: vLLM closes idle ones after five seconds."""
