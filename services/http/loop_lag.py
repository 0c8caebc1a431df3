"""LoopLag: how late an event loop is with what it had promised to do, and a clock that leaves that time out.

A loop that was blocked for six seconds finds a deadline of five seconds past and the answer unread in a socket. So
deadlines count the time in which the loop could have noticed an answer: the others' fault, not ours.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from types import TracebackType

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric

EVERY_S = 0.1
BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
WINDOW_S = 30.0
"""The worst is kept for one to two of these: longer than the pause between two scrapes, whoever scrapes."""
SLACK_S = 0.01
"""Lateness that every loop has."""


class LoopLag:
    """Wakes up ten times a second and notes how much too late. About 20 us each time: 0.02 % of a processor."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lag = prometheus.Histogram(
            "rollyard_event_loop_lag_seconds", "How late the event loop runs", buckets=BUCKETS, registry=None
        )
        self._worst = 0.0
        self._worst_before = 0.0
        self._window_ends = clock() + WINDOW_S
        self._lost = 0.0
        self._due = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure the running loop until `stop`; starting twice is fine."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._wake()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop, self._due = None, math.inf

    def note(self, late_s: float) -> None:
        """One wake-up was so late."""
        self._lag.observe(late_s)
        self._turn()
        self._worst = max(self._worst, late_s)
        if late_s > SLACK_S:
            self._lost += late_s

    def lived(self) -> float:
        """Seconds on a monotonic clock that stands still while the loop is blocked."""
        now = self._clock()
        late = now - self._due
        return now - self._lost - (late if late > SLACK_S else 0.0)

    def timeout(self, seconds: float) -> LagAwareTimeout:
        """As `asyncio.timeout`, in lived time: `async with lag.timeout(5.0): ...` raises TimeoutError."""
        return LagAwareTimeout(self, seconds)

    @property
    def worst_s(self) -> float:
        """The longest of the last 30 to 60 seconds."""
        self._turn()
        return max(self._worst, self._worst_before)

    def collect(self) -> Iterable[Metric]:
        """For Prometheus."""
        yield from self._lag.collect()
        name, meaning = "rollyard_event_loop_lag_worst_seconds", "The longest in the last 30 to 60 seconds"
        yield GaugeMetricFamily(name, meaning, value=self.worst_s)

    def _wake(self) -> None:
        now = self._clock()
        if self._due != math.inf:
            self.note(max(now - self._due, 0.0))
        assert self._loop is not None
        self._due = now + EVERY_S
        self._timer = self._loop.call_later(EVERY_S, self._wake)

    def _turn(self) -> None:
        """Begin a new window when it is time."""
        now = self._clock()
        if now >= self._window_ends:
            self._worst_before = self._worst if now < self._window_ends + WINDOW_S else 0.0
            self._worst, self._window_ends = 0.0, now + WINDOW_S


class LagAwareTimeout:
    """Cancels the task within it once so much lived time has passed, and turns that into TimeoutError."""

    def __init__(self, lag: LoopLag, seconds: float) -> None:
        self._lag = lag
        self._until = lag.lived() + seconds
        self._expired = False

    @property
    def left_s(self) -> float:
        """Seconds until it expires."""
        return self._until - self._lag.lived()

    async def __aenter__(self) -> LagAwareTimeout:
        self._lag.start()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(max(self.left_s, 0.0), self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        if (left_s := self.left_s) > SLACK_S:  # the loop was blocked: what has come meanwhile is read first
            self._timer = asyncio.get_running_loop().call_later(left_s, self._expire)
            return
        self._expired = True
        self._task.cancel()
