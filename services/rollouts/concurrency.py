"""Finds the number of concurrent rollouts: `Concurrency` decides, about once a second, from what `LoadReader` reads.

The throughput of model calls is measured at one limit after another. The limit doubles while the throughput rises by
at least 5 %, then approaches the highest one that is worth it and stays there. Now and then a step up is tried again,
and a step down if the throughput has fallen. Three things end a step early:

    overload         rejected calls (429, 503), timeouts and preemptions: back to the last good limit, or to 0.7 of
                     this one
    saturation       engines report a queue or a full KV cache: the limit is lowered by the calls that only wait
    bounds           open files, memory, and the number of rollouts that are left

A measurement begins after every rollout has made a call at the new limit, and takes another one of each or more, until
the difference is certain. Times are therefore counted in calls, which last from milliseconds to minutes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from dataclasses import dataclass

import orjson
from pydantic import ValidationError

from rollyard.records.activity import LOAD_PATH, ModelLoad, summed
from rollyard.records.errors import Failure
from rollyard.services.http.client import ServerClient

START = 16
"""The first limit. Starting too low costs seconds, too high a queue that takes an episode to drain."""
CUT = 0.7
FINEST = 1.05
"""The search ends if the lowest limit that is not worth it is less than this factor above the best one."""
LEAP, STEP = 2.0, 1.25
"""The step up while the throughput follows the limit, and afterwards."""
STEEP = 0.7
"""It follows if it rises by more than the factor r**STEEP with a limit that is r times higher."""
ELASTICITY = 0.07
"""A limit that is r times higher must raise the throughput by the factor r**ELASTICITY."""
BETTER = 1.03
"""A lower limit must raise the throughput by this factor."""
OVERLOADED = 0.1
"""Share of overloaded calls that is too high, in addition to twice the share at the last good limit."""
QUEUE = 0.05
"""Engines are saturated if more than this share of what they run waits."""
KV_FULL = 0.95
DROP = 0.8
"""A settled limit is reconsidered at once if its throughput falls below this share."""
COLLAPSE = 0.5
"""A higher limit is given up at once if the throughput falls below this share."""
MIN_CALLS, MAX_CALLS = 8, 8
"""Finished calls of a measurement: at least MIN_CALLS and one per rollout in flight, and at most MAX_CALLS of these."""
MIN_SAMPLES, MAX_SAMPLES = 2, 5
HOLD_S, HOLD_CALLS, MAX_HOLDS = 30.0, 10, 16
"""A limit stays settled for HOLD_S seconds and HOLD_CALLS calls per rollout, then twice as long, up to MAX_HOLDS."""
READ_S = 5.0
ENOUGH_MEMORY, LITTLE_MEMORY = 0.1, 0.05
"""Shares of the host's memory: with less than the first free, the limit does not rise; with less than the second, it
falls."""


@dataclass(frozen=True)
class Measured:
    limit: int
    rate: float
    """Successful calls per second."""
    calls: int


@dataclass
class _Window:
    """The samples at one limit."""

    started: float
    first: ModelLoad
    samples: int = 0
    in_flight: int = 0
    running: float = 0.0
    waiting: float = 0.0
    kv_cache_usage: float = 0.0


class Concurrency:
    """Returns the limit for the next second. It has no clock and reads nothing itself."""

    def __init__(self, most: int, start: int = START) -> None:
        self._most = self._bound = most
        self.limit = max(1, min(start, most))
        self.why = "the rollouts are too few to measure more"
        """Why the limit is not higher."""
        self._best: Measured | None = None
        self._failed: int | None = None
        """The lowest limit above the best one that is known not to be worth it."""
        self._down_checked = False
        """Whether a lower limit is known to be no better."""
        self._step = LEAP
        self._finest = FINEST
        self._held_until: float | None = None
        """While the limit is settled: when to try a step again."""
        self._holds = 1
        self._window: _Window | None = None
        self._now = 0.0
        self._moved_at: int | None = None
        """Number of finished calls when the limit took effect."""
        self._moved_s = 0.0
        self._cycle_s = 0.0
        """Seconds from one call of a rollout to its next one."""
        self._background = 0.0
        """Share of overloaded calls at the last good limit: faults that have other causes."""

    @property
    def settled(self) -> bool:
        return self._held_until is not None

    def update(self, now: float, load: ModelLoad, in_flight: int, free_memory: float = 1.0) -> int:
        """Take one sample and return the limit. `in_flight`: rollouts in flight; `free_memory`: share of the host's."""
        self._now, self._bound = now, self._most
        if free_memory < ENOUGH_MEMORY:
            self._bound = self.limit if free_memory > LITTLE_MEMORY else max(1, self.limit * 9 // 10)
        if self.limit > self._bound:
            self._move(self._bound)
        window = self._window
        if window is None:
            if self._moved_at is None or in_flight > 1.05 * self.limit + 1:
                self._moved_at, self._moved_s = load.finished, now
            if load.finished - self._moved_at >= self.limit:  # the calls that began before have ended
                self._window = _Window(now, load)
            elif self._best is not None and self._has_collapsed(self._best, load.finished - self._moved_at):
                self._refuse()
                self._move(self._best.limit)
            return self.limit
        if in_flight < 0.9 * self.limit:  # too few rollouts are left: the limit has no effect
            self._window = _Window(now, load)
            return self.limit
        self._add(window, load)
        calls, overloads = load.finished - window.first.finished, _overloads(load) - _overloads(window.first)
        share = overloads / (overloads + calls) if overloads else 0.0
        if overloads >= 3 and share > OVERLOADED + 2 * self._background:
            self._cut()
        elif (measured := self._measured(window, load)) is not None:
            self._window = None
            self._decide(measured, window, share)
        return self.limit

    def _add(self, window: _Window, load: ModelLoad) -> None:
        window.samples += 1
        window.in_flight += load.in_flight
        if load.engine is not None:
            window.running += load.engine.running
            window.waiting += load.engine.waiting
            window.kv_cache_usage += load.engine.kv_cache_usage

    def _measured(self, window: _Window, load: ModelLoad) -> Measured | None:
        """Return the throughput at this limit, or None if it is not yet certain enough."""
        calls, failed = load.finished - window.first.finished, load.failed - window.first.failed
        best, elapsed_s, enough = self._best, self._now - window.started, max(MIN_CALLS, self.limit)
        if calls < enough or window.samples < MIN_SAMPLES:
            has_collapsed = best is not None and elapsed_s * best.rate * COLLAPSE > enough
            return Measured(self.limit, (calls - failed) / elapsed_s, calls) if has_collapsed else None
        self._cycle_s = elapsed_s * self.limit / calls
        latency_s = (load.seconds - window.first.seconds) / calls
        # Little's law errs where the number in flight varies, and the count where calls end together.
        rate = (window.in_flight / window.samples / max(latency_s, 1e-6) + calls / elapsed_s) / 2
        measured = Measured(self.limit, rate * (1 - failed / calls), calls)
        if window.samples >= MAX_SAMPLES and calls >= MAX_CALLS * self.limit:
            return measured
        if self.settled and best is not None and measured.rate > DROP * best.rate:
            return None
        if best is None or not measured.rate or not best.rate or best.limit == self.limit:
            return measured
        margin = math.log(measured.rate / best.rate) - math.log(_needed(best.limit, self.limit))
        return measured if abs(margin) > 2 * math.sqrt(1 / calls + 1 / best.calls) else None

    def _has_collapsed(self, best: Measured, calls: int) -> bool:
        """Return whether so few calls finish at a higher limit that it need not be measured."""
        expected = best.rate * (self._now - self._moved_s)
        return self.limit > best.limit and expected >= max(best.limit, MIN_CALLS) and calls < COLLAPSE * expected

    def _decide(self, measured: Measured, window: _Window, share: float) -> None:
        best, limit = self._best, measured.limit
        if best is not None and best.limit == limit and measured.rate < DROP * best.rate:
            # Congested, or a slower workload: after a fresh measurement, a lower limit shows which, then a higher one.
            self._failed, self._down_checked, self._held_until = math.ceil(STEP * limit), False, None
            self._step, self._finest, self._holds = STEP, FINEST, 1
            self._best = None
            return
        if self._held_until is not None:
            if self._now < self._held_until:
                return
            self._failed, self._down_checked, self._held_until = None, True, None
            self._step, self._finest, self._holds = STEP, STEP + 0.05, min(2 * self._holds, MAX_HOLDS)
            best = None
        running, waiting = window.running / window.samples, window.waiting / window.samples
        kv_cache_usage = window.kv_cache_usage / window.samples
        if waiting > QUEUE * running + 1:
            # If more calls are in flight than rollouts, other collectors have made them, and cut their part.
            calls = min(window.in_flight / window.samples, limit)
            excess = calls * (waiting - QUEUE * running) / (running + waiting)
            self.why = f"at {limit}, the engines ran {running:.0f} calls and {waiting:.0f} waited"
            self._best, self._background = measured, share
            self._hold(max(1, limit // 2, limit - int(excess)))
            return
        if best is None or best.limit == limit or measured.rate >= best.rate * _needed(best.limit, limit):
            if best is not None and limit < best.limit:
                self._failed = best.limit
            elif best is not None and limit > best.limit:
                self._down_checked = True
                steep = measured.rate > best.rate * (limit / best.limit) ** STEEP
                self._step, self._holds = min(LEAP, self._step**2) if steep else STEP, 1
            self._best, self._background = measured, share
        elif limit > best.limit:
            self._refuse()
        else:
            self._down_checked = True
        if kv_cache_usage > KV_FULL and self._best is measured:
            self.why = f"at {limit}, the engines' KV cache was {kv_cache_usage:.0%} full"
            self._hold(limit)
        else:
            self._search()

    def _refuse(self) -> None:
        self._failed, self.why = self.limit, f"at {self.limit}, the throughput was not worth it"

    def _search(self) -> None:
        best = self._best
        assert best is not None
        if self._failed is None:
            candidate = min(math.ceil(self._step * best.limit), self._bound)
            if candidate > best.limit:
                self._move(candidate)
            else:
                self.why = "open files and memory allow no more"
                self._hold(best.limit)
        elif not self._down_checked and best.limit > 1:
            self._move(best.limit // 2)
        else:
            between = round(math.sqrt(best.limit * self._failed))
            if self._failed / best.limit >= self._finest and best.limit < between < self._failed:
                self._move(between)
            else:
                self._hold(best.limit)

    def _hold(self, limit: int) -> None:
        self._move(limit)
        self._held_until = self._now + self._holds * max(HOLD_S, HOLD_CALLS * self._cycle_s)

    def _cut(self) -> None:
        best, limit = self._best, self.limit
        self.why = f"at {limit}, calls were rejected, timed out or were preempted"
        self._failed, self._down_checked, self._held_until, self._finest = limit, True, None, FINEST
        if best is not None and best.limit < limit:
            self._move(best.limit)
        else:
            self._best = None
            self._move(max(1, int(CUT * limit)))

    def _move(self, limit: int) -> None:
        self._window, limit = None, min(limit, self._bound)
        if limit != self.limit:
            self.limit, self._moved_at = limit, None


def _needed(before: int, now: int) -> float:
    return (now / before) ** ELASTICITY if now >= before else BETTER


def _overloads(load: ModelLoad) -> int:
    return load.rejected + (load.engine.preemptions if load.engine else 0)


class LoadReader:
    """Reads the load of all instances of the model servers that a collection uses, as one sum."""

    def __init__(self, client: ServerClient, servers: Collection[str]) -> None:
        self._client = client
        self._servers = servers
        self._latest: dict[str, ModelLoad] = {}
        self._ended = ModelLoad()
        """The counters of instances that have restarted or left."""
        self.supported = True
        """False if none of the servers reports its load."""

    async def read(self) -> ModelLoad | None:
        """Return the sums since the start of the servers; None if an instance does not answer at the moment."""
        directory = await self._client.book.current()
        book = self._client.book
        urls = [url for name in self._servers for url in directory.servers.get(name, ())]
        own = [url for url in urls if book.foreign_instance(url) is None]
        try:
            answers = await asyncio.gather(*(self._client.get_from(url, LOAD_PATH, READ_S) for url in own))
            loads = {
                url: ModelLoad.model_validate(orjson.loads(answer.body))
                for url, answer in zip(own, answers, strict=True)
                if answer.status == 200
            }
        except (Failure, ValidationError, orjson.JSONDecodeError):
            return None
        self.supported = bool(loads) or not own
        for url, before in self._latest.items():
            if url not in loads or loads[url].finished < before.finished:
                self._ended = summed([self._ended, before.model_copy(update={"in_flight": 0, "engine": None})])
        self._latest = loads
        return summed([self._ended, *loads.values()])
