"""Engines: one request to every engine behind a model server, and what each said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from responses_api_models.upstream import Upstream
from responses_api_models.upstream_answers import error_message
from services.client import PROBLEM_TYPE
from services.errors import Failure, FailureKind
from services.types import Json

DEV_MODE = "vLLM opens its control endpoints with VLLM_SERVER_DEV_MODE=1 in its environment"


@dataclass(frozen=True, slots=True)
class Said:
    """What one engine answered; a problem of our own where it gave no answer."""

    url: str
    status: int
    body: bytes
    content_type: str = "application/json"

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
        return Failure(FailureKind.UPSTREAM_ERROR, told + hint, upstream_status=self.status)


class Engines:
    """Those of an upstream. Paths stand beside the API's `/v1`."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    @property
    def urls(self) -> list[str]:
        """Their addresses now."""
        return self._upstream.replicas.urls

    def add(self, url: str) -> None:
        """Calls may go there, too."""
        self._upstream.replicas.add(url)

    async def all(self, urls: Sequence[str], step: Callable[[str], Awaitable[None]]) -> list[Failure]:
        """The step on all of them at once; the failures of those that are still there."""
        results = await asyncio.gather(*(step(url) for url in urls), return_exceptions=True)
        failures: list[Failure] = []
        for url, result in zip(urls, results, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, Failure):
                raise result
            if isinstance(result, Failure) and url in self.urls:
                failures.append(result)
        return failures

    async def each(self, method: str, path: str, body: bytes = b"") -> list[Said]:
        """What each of them says, asked all at once and once only. None is left out, whatever happens to another."""
        if not self.urls:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        return await asyncio.gather(*(self.ask(url, method, path, body) for url in self.urls))

    async def ask(self, url: str, method: str, path: str, body: bytes = b"", timeout_s: float | None = None) -> Said:
        """What one of them says."""
        try:
            answer = await self._upstream.send(method, url, f"/..{path}", body, timeout_s)
        except Failure as failure:
            problem = failure.problem
            return Said(url, problem.status, problem.model_dump_json().encode(), PROBLEM_TYPE)
        return Said(url, answer.status, answer.body, answer.headers.get("content-type") or "text/plain")

    async def step(self, url: str, path: str, body: Json | None = None, timeout_s: float | None = None) -> Any:
        """A POST that may be repeated, with what it answered. Raises Failure."""
        sent = orjson.dumps(body) if body is not None else b""
        said = await self.ask(url, "POST", path, sent, timeout_s)
        if said.status in _NO_ANSWER and said.content_type == PROBLEM_TYPE:
            said = await self.ask(url, "POST", path, sent, timeout_s)
        if not said.ok:
            raise said.failure(path)
        return said.value


_NO_ANSWER = (502, 503)
"""A connection that broke or was not made: vLLM closes idle ones after five seconds."""
