"""Lease: how long a pause lasts without a sign of life from the trainer that asked for it.

Each control call renews it. When it ends, the policy goes on by itself: a trainer that died cannot stop it forever.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.services.types import Json

T = TypeVar("T")

LONGEST_S = 7 * 24 * 3600.0
FIELD = "lease_s"


class PauseLease:
    """At most one at a time: that of the last pause."""

    def __init__(self, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_end = on_end
        self._length_s = 0.0
        self._ends = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Future[None] | None = None
        self.expired: Json | None = None
        """The last one that ended by itself: its length, and when (Unix time); None after a pause that did not."""

    @property
    def length_s(self) -> float | None:
        """Seconds from one sign of life to the end; None while there is no lease."""
        return self._length_s if self._timer is not None else None

    @property
    def left_s(self) -> float | None:
        """Seconds until it ends; None while there is no lease."""
        return max(0.0, self._ends - time.monotonic()) if self._timer is not None else None

    def begin(self, length_s: float) -> None:
        """From now on, in place of the one before."""
        self.end()
        self._length_s = length_s
        self._ends = time.monotonic() + length_s
        self._timer = asyncio.get_running_loop().call_later(length_s, self._over)

    def renew(self) -> None:
        """The trainer is alive."""
        if self._timer is not None:
            self.begin(self._length_s)

    async def during(self, step: Callable[[], Awaitable[T]]) -> T:
        """What the step returns. It is a sign of life from its beginning to its end."""
        self.renew()
        try:
            return await step()
        finally:
            self.renew()

    def end(self) -> None:
        """The pause is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_over(self) -> bool:
        """It ended, and was neither renewed nor given up since."""
        return self._timer is not None and time.monotonic() >= self._ends

    def expire(self) -> None:
        """Note that it ended by itself."""
        self.expired = {"lease_s": self._length_s, "at": round(time.time(), 3)}
        self.end()

    def _over(self) -> None:
        self._ends = min(self._ends, time.monotonic())
        self._ending = asyncio.ensure_future(self._on_end())
        self._ending.add_done_callback(lambda done: done.cancelled() or done.exception())  # Jobs logs it


def split_lease(query: str, request: Json) -> tuple[float | None, str, Json]:
    """The lease that a call asks for, and its query and body without it: engines do not know the field.

    Raises Failure bad_request.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    given: Any = next((value for name, value in pairs if name == FIELD), request.get(FIELD))
    if given is None:
        return None, query, request
    try:
        length_s = float(given) if not isinstance(given, bool) else math.nan
    except (TypeError, ValueError):
        length_s = math.nan
    if not 0 < length_s <= LONGEST_S:
        raise bad_request(
            f"{FIELD}: found {str(given)[:50]!r}; expected seconds, more than 0 and at most {LONGEST_S:.0f}"
        )
    rest = urlencode([(name, value) for name, value in pairs if name != FIELD])
    return length_s, rest, {name: value for name, value in request.items() if name != FIELD}
