"""The lease on a pause, which limits how long the pause lasts without a control call from the trainer.

Each control call renews the lease. When it expires, the policy resumes automatically, so a dead trainer cannot stop it
forever.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request

T = TypeVar("T")

MAX_LEASE_S = 7 * 24 * 3600.0
FIELD = "lease_s"


class PauseLease:
    """Manages the lease on the current pause, if it has one."""

    def __init__(self, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_end = on_end
        self._length_s = 0.0
        self._ends = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Future[None] | None = None
        self.expired: Json | None = None
        """Length and expiry (Unix time) of the last lease that expired; None if none has expired."""

    @property
    def length_s(self) -> float | None:
        """Seconds from the last control call to expiry; None if there is no lease."""
        return self._length_s if self._timer is not None else None

    @property
    def left_s(self) -> float | None:
        """Seconds until expiry; None if there is no lease."""
        return max(0.0, self._ends - time.monotonic()) if self._timer is not None else None

    def start(self, length_s: float) -> None:
        """Start a lease, replacing the current one."""
        self.end()
        self._length_s = length_s
        self._ends = time.monotonic() + length_s
        self._timer = asyncio.get_running_loop().call_later(length_s, self._over)

    def renew(self) -> None:
        """Restart the current lease, because the trainer is alive."""
        if self._timer is not None:
            self.start(self._length_s)

    async def during(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run the step and return its result, renewing the lease before and after."""
        self.renew()
        try:
            return await step()
        finally:
            self.renew()

    def end(self) -> None:
        """Cancel the lease, because the pause is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_over(self) -> bool:
        """Whether the lease has expired and has been neither renewed nor cancelled since."""
        return self._timer is not None and time.monotonic() >= self._ends

    def expire(self) -> None:
        """Record that the lease expired."""
        self.expired = {"lease_s": self._length_s, "at": round(time.time(), 3)}
        self.end()

    def _over(self) -> None:
        self._ends = min(self._ends, time.monotonic())
        self._ending = asyncio.ensure_future(self._on_end())
        self._ending.add_done_callback(lambda done: done.cancelled() or done.exception())  # JobQueue logs it


def split_lease(query: str, request: Json) -> tuple[float | None, str, Json]:
    """Return the lease in seconds that a call requests, and the call's query and body without the lease field, which
    engines do not support.

    Raises Failure bad_request if the lease is not a number of seconds within the limits.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    requested: Any = next((value for name, value in pairs if name == FIELD), request.get(FIELD))
    if requested is None:
        return None, query, request
    try:
        length_s = float(requested) if not isinstance(requested, bool) else math.nan
    except (TypeError, ValueError):
        length_s = math.nan
    if not 0 < length_s <= MAX_LEASE_S:
        raise bad_request(
            f"{FIELD}: found {str(requested)[:50]!r}; expected a number of seconds between 0 and {MAX_LEASE_S:.0f}"
        )
    rest = urlencode([(name, value) for name, value in pairs if name != FIELD])
    return length_s, rest, {name: value for name, value in request.items() if name != FIELD}
