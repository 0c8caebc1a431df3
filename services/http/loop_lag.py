"""LoopLag: measures how late the event loop runs callbacks, and provides a clock that excludes that time.

If the loop is blocked for six seconds, a five-second deadline expires even though the response may be waiting in a
socket. Deadlines therefore count only the time in which the loop could have read the response.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

EVERY_S = 0.1
BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
WINDOW_S = 30.0
"""Window length. The reported maximum covers two windows, which is longer than the usual scrape interval."""
SLACK_S = 0.01
"""Lag up to this value is normal, so the clock does not exclude it."""
SWEEP_S = 1.0
"""Interval at which `LoopLag` looks for timeouts that are due soon."""
BUSY = 0.8
"""Share of a core above which a process limits the run: its requests then wait for each other."""
BUSY_WINDOW_S = 10.0


class CpuShare:
    """The share of a core that this process uses, if `sample` is called every few seconds.

    All threads count, because only one of them runs Python at a time. Environments that compute in threads delay the
    event loop as much as if they computed in it.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._samples: deque[tuple[float, float]] = deque()
        """Times and CPU times of the last `BUSY_WINDOW_S`, and of the sample before."""

    def sample(self) -> float:
        """Return the share over the last `BUSY_WINDOW_S`; 0 until it has been measured for that long."""
        now, cpu_s = self._clock(), self._cpu_clock()
        self._samples.append((now, cpu_s))
        while len(self._samples) > 2 and self._samples[1][0] <= now - BUSY_WINDOW_S:
            self._samples.popleft()
        started, before = self._samples[0]
        return (cpu_s - before) / (now - started) if now - started >= BUSY_WINDOW_S else 0.0


class LoopLag:
    """Wakes up ten times a second and records how late it is. Each wake-up takes about 20 us (0.02 % of a core)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._total_s = 0.0
        self._max = 0.0
        self._previous_max = 0.0
        self._window_ends = clock() + WINDOW_S
        self._lost = 0.0
        self._due = math.inf
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop whose lag is measured; None while it is not."""
        self._timer: asyncio.TimerHandle | None = None
        self.timeouts: set[LagAwareTimeout] = set()
        """Those that may have to expire. Most end long before and never need a timer, which takes 10 us."""
        self._next_sweep = 0.0

    def start(self) -> None:
        """Measure the running loop's lag until `stop` is called. Idempotent."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.loop = loop
            self._wake()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.loop, self._due = None, math.inf
        for timeout in self.timeouts:
            timeout.start_timer(within_s=math.inf)

    def record(self, late_s: float) -> None:
        """Record that a wake-up was `late_s` seconds late."""
        self._buckets[bisect_left(BUCKETS, late_s)] += 1
        self._total_s += late_s
        self._rotate_window()
        self._max = max(self._max, late_s)
        if late_s > SLACK_S:
            self._lost += late_s

    def now(self) -> float:
        """Return the time in seconds on a monotonic clock that stops while the loop is blocked."""
        now = self._clock()
        late = now - self._due
        return now - self._lost - (late if late > SLACK_S else 0.0)

    @property
    def late_s(self) -> float:
        """How long the loop has been blocked until now. May be read in any thread."""
        return max(self._clock() - self._due, 0.0)

    def timeout(self, seconds: float) -> LagAwareTimeout:
        """Like `asyncio.timeout`, but measured with `now`. Use it as `with lag.timeout(5.0): ...` in a task."""
        return LagAwareTimeout(self, seconds)

    @property
    def worst_s(self) -> float:
        self._rotate_window()
        return max(self._max, self._previous_max)

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily  # commands need no metrics

        buckets = list(zip([*map(str, BUCKETS), "+Inf"], accumulate(self._buckets), strict=True))
        name, help_text = "rollyard_event_loop_lag_seconds", "Delay of the event loop's callbacks"
        yield HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self._total_s)
        name, help_text = "rollyard_event_loop_lag_worst_seconds", "Longest event-loop lag of the last 30 to 60 seconds"
        yield GaugeMetricFamily(name, help_text, value=self.worst_s)

    def _wake(self) -> None:
        now = self._clock()
        if self._due != math.inf:
            self.record(max(now - self._due, 0.0))
        assert self.loop is not None
        self._due = now + EVERY_S
        self._timer = self.loop.call_later(EVERY_S, self._wake)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            for timeout in self.timeouts:
                timeout.start_timer(within_s=2 * SWEEP_S)

    def _rotate_window(self) -> None:
        now = self._clock()
        if now >= self._window_ends:
            self._previous_max = self._max if now < self._window_ends + WINDOW_S else 0.0
            self._max, self._window_ends = 0.0, now + WINDOW_S


class LagAwareTimeout:
    """Cancels the enclosed task on expiry and raises TimeoutError. Does not count time while the loop is blocked."""

    __slots__ = ("__weakref__", "_cancelling", "_expired", "_is_short", "_lag", "_task", "_timer", "_until")

    def __init__(self, lag: LoopLag, seconds: float) -> None:
        self._lag = lag
        self._until = lag.now() + seconds
        self._is_short = seconds < 2 * SWEEP_S
        self._expired = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def left_s(self) -> float:
        return self._until - self._lag.now()

    def start_timer(self, within_s: float) -> None:
        """Start the timer if it is due within that time. `LoopLag` calls this regularly."""
        if self._timer is None and (left_s := self.left_s) < within_s:
            self._timer = self._task.get_loop().call_later(max(left_s, 0.0), self._expire)

    def __enter__(self) -> LagAwareTimeout:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._lag.timeouts.add(self)
        if self._lag.loop is not task.get_loop():
            self._lag.start()
        if self._is_short:
            self.start_timer(within_s=math.inf)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._lag.timeouts.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # it refers to this object, too
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._timer = None
        if self.left_s > SLACK_S:  # the loop was blocked: read what has arrived first
            self.start_timer(within_s=math.inf)
            return
        self._expired = True
        # The task may need several iterations to end, and must not be cancelled again.
        self._lag.timeouts.discard(self)
        self._task.cancel()
