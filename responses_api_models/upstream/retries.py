"""Tries: one model call, asked again with patience that ends.

A model call keeps no state, so it may be asked again. What becomes of a failed try:

    no connection, connection lost, 5xx, 408, 409, 425,    again: at once at an endpoint that this call has not tried,
    429, an unreadable or empty answer                     else after a pause (as long as Retry-After asks for)
    no answer in time                                      likewise, when the budget still holds a whole try
    a refusal (any other 3xx or 4xx)                       once at other endpoints; when none takes it, or there is only
                                                           one, asking again cannot help
    the context overflows                                  never

and never more than `max_attempts` times or beyond `total_timeout_s` in all. Each failure that points at the endpoint
cools it down (endpoint.py). A 400, 413 or 422 points at the request, unless another endpoint takes it.

An episode that has begun stays at its endpoint and is tried again there. It is lost when that endpoint is gone or down,
or refuses it while there are others: the collector then plays it again whole. The first failure is logged when it
happens.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rollyard.responses_api_models.upstream.endpoint import Endpoint
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.settings import CallSettings
from rollyard.services.errors import Failure, FailureKind

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_CAP_S = 10.0
"""Longest pause of our own between two tries."""
_RETRIED = (
    {FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT, FailureKind.RATE_LIMITED}
    | {FailureKind.UPSTREAM_ERROR, FailureKind.MALFORMED_ANSWER}
)  # fmt: skip
_ABOUT_THE_REQUEST = frozenset({400, 411, 412, 413, 414, 415, 416, 417, 422, 431})
"""Statuses of a refusal that point at the request, as long as no other endpoint takes it."""
Try = Callable[[Endpoint, float], Awaitable[T]]
"""One request to an endpoint within so many seconds."""


class UpstreamRefusal(Failure):
    """The failure that an error answer reports, with the pause that it asks for."""

    def __init__(self, failure: Failure, pause_s: float) -> None:
        super().__init__(failure.kind, failure.problem.detail)
        self.problem = failure.problem
        self.pause_s = pause_s


class RetryingCaller:
    """The tries of all calls to one pool."""

    def __init__(self, replicas: Replicas, settings: CallSettings) -> None:
        self._replicas = replicas
        self._settings = settings
        self._quiet_until = 0.0
        self._unlogged = 0

    async def make(self, path: str, request_context: RequestContext, once: Try[T]) -> T:
        """What `once` brings for the call of `path`. Raises Failure: the last try's, or session_lost."""
        settings = self._settings
        give_up = time.monotonic() + settings.total_timeout_s
        tried: list[Endpoint] = []
        doubted: list[Endpoint] = []
        """Those that refused the request; at fault only if another one takes it."""
        while True:
            endpoint = await self._endpoint(request_context, tried)
            begun = time.monotonic()
            try:
                timeout_s = max(min(settings.request_timeout_s, give_up - begun), 0.01)
                with endpoint.busy():
                    answer = await once(endpoint, timeout_s)
            except Failure as failure:
                tried.append(endpoint)
                refused = failure.kind is FailureKind.UPSTREAM_REFUSED
                if not refused and failure.kind not in _RETRIED:
                    raise
                asked = failure.pause_s if isinstance(failure, UpstreamRefusal) else 0.0
                if refused and failure.problem.upstream_status in _ABOUT_THE_REQUEST:
                    doubted.append(endpoint)
                else:
                    counts = failure.kind is not FailureKind.RATE_LIMITED
                    endpoint.fail(path, begun, pause_s=asked, counts=counts)
                self._check_affinity(failure, endpoint, request_context)
                elsewhere = self._goes_elsewhere(request_context, tried)
                pause = 0.0 if elsewhere else asked + self._pause_s(len(tried))
                left = give_up - time.monotonic() - pause
                last = len(tried) >= settings.max_attempts or left <= 0 or (refused and not elsewhere)
                last = last or (failure.kind is FailureKind.TIMEOUT and left < settings.request_timeout_s)
                then = "giving up" if last else "again elsewhere" if elsewhere else f"again in {pause:.1f} s"
                tries = f"try {len(tried)} of {settings.max_attempts}"
                self._log(f"{joined(endpoint.url, path)}: {tries}: {failure} ({then})")
                if last:
                    raise _told(failure, len(tried)) from failure
            else:
                for other in doubted:
                    other.fail(path, begun)
                self._replicas.answered(endpoint, request_context.affinity, path)
                request_context.endpoint = endpoint
                return answer
            if pause:
                await asyncio.sleep(pause)

    async def _endpoint(self, request_context: RequestContext, tried: Sequence[Endpoint]) -> Endpoint:
        """Where the next try goes: requests of one call stay together while that works."""
        before = request_context.endpoint
        if before is not None and before not in tried and self._replicas.holds(before):
            return before
        return await self._replicas.choose(request_context.affinity, tried)

    def _goes_elsewhere(self, request_context: RequestContext, tried: Sequence[Endpoint]) -> bool:
        """True when the next try goes to an endpoint that this call has not asked yet."""
        if self._replicas.binds(request_context.affinity, tried[-1]):
            return False
        following = self._replicas.best(tried)
        return following is not None and following not in tried

    def _pause_s(self, attempt: int) -> float:
        longest = min(self._settings.retry_pause_s * 2 ** min(attempt - 1, 20), PAUSE_CAP_S)
        return random.uniform(0.5, 1.0) * float(longest)

    def _check_affinity(self, failure: Failure, endpoint: Endpoint, request_context: RequestContext) -> None:
        """Raises Failure session_lost when the episode began at this endpoint and cannot go on there."""
        affinity = request_context.affinity
        if affinity is None or not self._replicas.binds(affinity, endpoint):
            return
        if self._replicas.holds(endpoint):
            if len(self._replicas) == 1:
                return  # there is nowhere else to go: who restarts it gets the episode back
            refused = failure.kind is FailureKind.UPSTREAM_REFUSED
            if refused and failure.problem.upstream_status in _ABOUT_THE_REQUEST:
                return
            if not (refused or failure.kind is FailureKind.UNREACHABLE or endpoint.is_down):
                return
        raise self._replicas.lost(affinity, failure.problem.detail) from failure

    def _log(self, text: str) -> None:
        """The first at once, then one a second: a dead endpoint with hundreds of calls must not drown the log."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        log.warning("%s%s", text, f" [and {self._unlogged} more failed tries]" if self._unlogged else "")
        self._quiet_until, self._unlogged = now + 1.0, 0


def joined(url: str, path: str) -> str:
    """The address of `path`; one that begins with `/../` stands beside the API's `/v1`."""
    return url.removesuffix("/v1") + path[3:] if path.startswith("/../") else url + path


def _told(failure: Failure, attempts: int) -> Failure:
    """The failure, saying how often it was tried."""
    if attempts == 1:
        return failure
    problem = failure.problem
    return Failure.of(problem.model_copy(update={"detail": f"{problem.detail} (tried {attempts} times)"}))
