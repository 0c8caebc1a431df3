"""Sends requests to every engine behind a model server, and tracks which engines are lost.

An engine that does not respond while another one does is lost: it leaves the pool, so model calls continue without it,
and rejoins once it has the policy's weights again (weight_update.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.upstream.response_parsing import error_message
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.http.request import PROBLEM_TYPE

log = logging.getLogger(__name__)

DEV_MODE = "vLLM enables its control endpoints with VLLM_SERVER_DEV_MODE=1 in its environment"

STEP_S = 120.0
"""Timeout for a step that loads no weights. A pause waits until the engine's current batch is done."""
QUERY_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineReply:
    """The response of one engine; a problem document from this server if the engine did not respond."""

    url: str
    status: int
    body: bytes
    content_type: str = "application/json"
    answered: bool = True

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def value(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return self.body.decode("utf-8", "replace")

    def get(self, *keys: str | int) -> Any:
        found: Any = self.value if self.ok else None
        for key in keys:
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                return None
        return found

    def failure(self, path: str) -> Failure:
        detail = f"{self.url.removesuffix('/v1')}{path} returned {self.status}: {error_message(self.body)}"
        detail += f" ({DEV_MODE})" if self.status == 404 else ""
        kind = Failure if self.answered else EngineUnreachable
        return kind(FailureKind.UPSTREAM_ERROR, detail, upstream_status=self.status)


class EngineUnreachable(Failure):
    """An engine could not be reached or did not respond, so it is unknown whether it executed the call."""


class EngineGroup:
    """The engines behind one `Upstream`. Paths are relative to an engine's root URL, not to `/v1`."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.lost: dict[str, None] = {}
        """Engines removed from the pool because they did not respond."""
        self.unresumed: set[str] = set()
        """Engines that did not respond to a resume call, but stay in the pool because no other engine is left."""

    @property
    def urls(self) -> list[str]:
        return self._upstream.replicas.urls

    def add(self, url: str) -> None:
        self.lost.pop(url, None)
        self._upstream.replicas.add(url)

    def forget(self, url: str) -> None:
        """Remove an engine that has exited; a new one may start at the same URL."""
        self.lost.pop(url, None)
        self._upstream.replicas.remove(url)

    def lose(self, url: str, why: str) -> bool:
        """Remove an engine from the pool unless it is the last one. Return True if it is no longer in the pool."""
        if url in self.urls:
            if len(self.urls) == 1:
                return False
            log.error("%s was removed from the pool until it has the policy's weights again: %s", url, why)
            self._upstream.replicas.remove(url)
            self.lost[url] = None
        return url in self.lost

    async def all(self, urls: Sequence[str], step: Callable[[str], Awaitable[None]]) -> dict[str, Failure]:
        """Run the step on all engines concurrently; return the failures of those that are still in the pool."""
        results = await asyncio.gather(*(step(url) for url in urls), return_exceptions=True)
        failed = {url: result for url, result in zip(urls, results, strict=True) if isinstance(result, Failure)}
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Failure):
                raise result
        unreachable = {url: str(failure) for url, failure in failed.items() if isinstance(failure, EngineUnreachable)}
        if len(unreachable) < len(urls):
            for url, why in unreachable.items():
                self.lose(url, why)
        return {url: failure for url, failure in failed.items() if url in self.urls}

    async def each(
        self, method: str, path: str, body: bytes = b"", bodies: Mapping[str, bytes] | None = None
    ) -> list[EngineReply]:
        """Send one request to every engine concurrently, without retries; return all replies. `bodies`: the body for an
        engine, by its URL, if it differs from `body`.
        """
        if not self.urls:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        own = bodies or {}
        return await asyncio.gather(*(self.request(url, method, path, own.get(url, body)) for url in self.urls))

    async def change_each(
        self, path: str, body: bytes = b"", bodies: Mapping[str, bytes] | None = None
    ) -> list[EngineReply]:
        """Send a POST that changes the engines. An engine that does not respond while another one does is lost."""
        replies = await self.each("POST", path, body, bodies)
        silent = [one for one in replies if not one.answered]
        for one in silent if len(silent) < len(replies) else ():
            self.lose(one.url, str(one.failure(path)))
        return replies

    async def request(
        self, url: str, method: str, path: str, body: bytes = b"", timeout_s: float | None = None
    ) -> EngineReply:
        try:
            answer = await self._upstream.send(method, url, f"/..{path}", body, timeout_s)
        except Failure as failure:
            problem = failure.problem
            return EngineReply(url, problem.status, problem.model_dump_json().encode(), PROBLEM_TYPE, False)
        return EngineReply(url, answer.status, answer.body, answer.headers.get("content-type") or "text/plain")

    async def query(self, url: str, path: str) -> EngineReply:
        return await self.request(url, "GET", path, timeout_s=QUERY_S)

    async def step(self, url: str, path: str, body: Json | None = None) -> EngineReply:
        """Send an idempotent POST, which is repeated once if the connection fails. Raises Failure if the call fails."""
        sent = orjson.dumps(body) if body is not None else b""
        reply = await self.request(url, "POST", path, sent, STEP_S)
        if reply.status in _CONNECTION_ERRORS and not reply.answered:
            reply = await self.request(url, "POST", path, sent, STEP_S)
        if not reply.ok:
            raise reply.failure(path)
        return reply


_CONNECTION_ERRORS = (502, 503)
"""Statuses of failed or interrupted connections; vLLM closes idle connections after five seconds."""


T = TypeVar("T")


class JobQueue:
    """Runs jobs on the engines one after another. A job runs to completion even if its caller disconnects. A partial
    update would be worse than none: engines would stay paused or have different weights.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` after all earlier jobs and return its result. Raises Failure if the server is stopping."""
        task = asyncio.create_task(self._in_turn(work))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait for the running job; reject the jobs that wait behind it."""
        self._stopping = True
        while self._running:
            await asyncio.wait(self._running)

    async def _in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._lock:
            if self._stopping:
                work.close()
                raise Failure(FailureKind.CANCELLED, "the server is stopping; nothing was done")
            return await work

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s", error)  # the caller may have disconnected
