"""Retries model calls, with limits on the number of attempts and the total time.

A model call is stateless, so it can be retried. After a failed attempt:

    no connection, connection lost, 5xx, 408, 409, 425,    retry: at once on an endpoint that this call has not tried,
    429, an unreadable or empty response                   else after a pause (at least that of Retry-After)
    timeout                                                likewise, if the remaining time allows a full attempt,
                                                           unless `retry_timeouts` is false
    a rejection (any other 3xx or 4xx)                     retry once on each other endpoint; then like the above if
                                                           the endpoint has answered `path` before, or if the status is
                                                           none that explains what is wrong; else give up
    context overflow                                       give up

There are at most `max_attempts` attempts within `total_timeout_s`. Each failure caused by the endpoint starts a
cool-down (endpoint.py). A 400, 413 or 422 is attributed to the request, unless another endpoint accepts it.

An episode is bound to the endpoint of its first response and retried there. It is lost if that endpoint is removed or
down, or rejects the call while there are other endpoints; the collector then repeats the episode from the start. The
first failure is logged immediately.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rollyard.records.errors import Failure, FailureKind
from rollyard.responses_api_models.upstream.endpoint import Endpoint
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.settings import CallSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_CAP_S = 10.0
"""Maximum pause between two attempts without Retry-After."""
_RETRIED = (
    {FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT, FailureKind.RATE_LIMITED}
    | {FailureKind.UPSTREAM_ERROR, FailureKind.MALFORMED_ANSWER}
)  # fmt: skip
_ABOUT_THE_REQUEST = frozenset({400, 411, 412, 413, 414, 415, 416, 417, 422, 431})
"""Statuses of rejections that are attributed to the request, unless another endpoint accepts it."""
_EXPLAINED = frozenset({400, 403, 404, 405, 411, 412, 414, 415, 416, 417, 422, 431})
"""Statuses with which an endpoint rejects what it never serves. Other ones may come from something in front of it."""
Attempt = Callable[[Endpoint, float], Awaitable[T]]
"""Sends one request to an endpoint, with a timeout in seconds."""


class UpstreamRefusal(Failure):
    """The failure for an error response, with the pause in seconds that the response requests."""

    def __init__(self, failure: Failure, pause_s: float) -> None:
        super().__init__(failure.kind, failure.problem.detail)
        self.problem = failure.problem
        self.pause_s = pause_s


class RetryingCaller:
    """Makes calls to one pool of endpoints and retries them."""

    def __init__(self, replicas: Replicas, settings: CallSettings) -> None:
        self._replicas = replicas
        self._settings = settings
        self._quiet_until = 0.0
        self._unlogged = 0

    async def make(self, path: str, request_context: RequestContext, once: Attempt[T]) -> T:
        """Call `once` for `path`, with retries, and return its result. Raises the last attempt's Failure, or
        session_lost.
        """
        settings = self._settings
        deadline = time.monotonic() + settings.total_timeout_s
        tried: list[Endpoint] = []
        rejecting: list[Endpoint] = []
        """Endpoints that rejected the request. This counts as their failure only if another endpoint accepts the
        request."""
        while True:
            endpoint = await self._endpoint(request_context, tried)
            started = time.monotonic()
            try:
                timeout_s = max(min(settings.request_timeout_s, deadline - started), 0.01)
                with endpoint.busy():
                    answer = await once(endpoint, timeout_s)
            except Failure as failure:
                tried.append(endpoint)
                refused = failure.kind is FailureKind.UPSTREAM_REFUSED
                if not refused and failure.kind not in _RETRIED:
                    raise
                requested_s = failure.pause_s if isinstance(failure, UpstreamRefusal) else 0.0
                if refused and failure.problem.upstream_status in _ABOUT_THE_REQUEST:
                    rejecting.append(endpoint)
                else:
                    counts = failure.kind is not FailureKind.RATE_LIMITED
                    endpoint.fail(path, started, pause_s=requested_s, counts=counts)
                self._check_affinity(failure, endpoint, request_context)
                elsewhere = self._goes_elsewhere(request_context, tried)
                pause = 0.0 if elsewhere else requested_s + self._pause_s(len(tried))
                left = deadline - time.monotonic() - pause
                last = len(tried) >= settings.max_attempts or left <= 0
                if refused and not elsewhere:
                    # Only what the endpoint always says is permanent, so a stray rejection is retried.
                    explained = failure.problem.upstream_status in _EXPLAINED
                    last = last or (explained and path not in endpoint.answered_paths)
                if failure.kind is FailureKind.TIMEOUT:
                    last = last or not settings.retry_timeouts or left < settings.request_timeout_s
                then = "giving up" if last else "retrying elsewhere" if elsewhere else f"retrying in {pause:.1f} s"
                attempt = f"attempt {len(tried)} of {settings.max_attempts}"
                self._log(f"{joined(endpoint.url, path)}: {attempt}: {failure} ({then})")
                if last:
                    raise _with_attempts(failure, len(tried)) from failure
            else:
                for other in rejecting:
                    other.fail(path, started)
                self._replicas.answered(endpoint, request_context.affinity, path)
                request_context.endpoint = endpoint
                return answer
            if pause:
                await asyncio.sleep(pause)

    async def _endpoint(self, request_context: RequestContext, tried: Sequence[Endpoint]) -> Endpoint:
        """Choose the endpoint for the next attempt. All requests of a call go to the same endpoint if possible."""
        before = request_context.endpoint
        if before is not None and before not in tried and self._replicas.holds(before):
            return before
        return await self._replicas.choose(request_context.affinity, tried)

    def _goes_elsewhere(self, request_context: RequestContext, tried: Sequence[Endpoint]) -> bool:
        """Return True if the next attempt goes to an endpoint that this call has not tried."""
        if self._replicas.binds(request_context.affinity, tried[-1]):
            return False
        candidate = self._replicas.best(tried)
        return candidate is not None and candidate not in tried

    def _pause_s(self, attempt: int) -> float:
        longest = min(self._settings.retry_pause_s * 2 ** min(attempt - 1, 20), PAUSE_CAP_S)
        return random.uniform(0.5, 1.0) * float(longest)

    def _check_affinity(self, failure: Failure, endpoint: Endpoint, request_context: RequestContext) -> None:
        """Raise Failure session_lost if the episode is bound to this endpoint and cannot continue there."""
        affinity = request_context.affinity
        if affinity is None or not self._replicas.binds(affinity, endpoint):
            return
        if self._replicas.holds(endpoint):
            if len(self._replicas) == 1:
                return  # the only endpoint: the episode can continue once it is restarted
            refused = failure.kind is FailureKind.UPSTREAM_REFUSED
            if refused and failure.problem.upstream_status in _ABOUT_THE_REQUEST:
                return
            if not (refused or failure.kind is FailureKind.UNREACHABLE or endpoint.is_down):
                return
        raise self._replicas.lost(affinity, failure.problem.detail) from failure

    def _log(self, text: str) -> None:
        """Log at most one message per second, because hundreds of calls to a dead endpoint can fail at once."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        log.warning("%s%s", text, f" [and {self._unlogged} more failed attempts]" if self._unlogged else "")
        self._quiet_until, self._unlogged = now + 1.0, 0


def joined(url: str, path: str) -> str:
    """Return the URL of `path`; a path that starts with `/../` is relative to the parent of the API's `/v1`."""
    return url.removesuffix("/v1") + path[3:] if path.startswith("/../") else url + path


def _with_attempts(failure: Failure, attempts: int) -> Failure:
    """Add the number of attempts to the failure."""
    if attempts == 1:
        return failure
    problem = failure.problem
    return Failure.of(problem.model_copy(update={"detail": f"{problem.detail} (tried {attempts} times)"}))
