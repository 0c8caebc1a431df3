"""Finds the number of concurrent rollouts: `Concurrency` decides, about once a second, from what `LoadReader` reads.

The throughput of model calls is measured at one limit after another. The limit doubles until this no longer raises the
throughput, then approaches the highest one that is worth it and stays there. Now and then a step up is tried again, and
a step down if the throughput has fallen; both must be better than a fresh measurement, because the speed of a host
changes meanwhile. While engines report that they have room, no limit below UNMEASURED is measured, and none below the
best one is tried. Four things end a step early:

    overload         rejected calls (429, 503), timeouts and preemptions: back to the last good limit, or to 0.7 of
                     this one
    crowding         many more calls are in flight than a higher limit explains, or few finish, and no engine reports
                     room: back to the last good limit, and below it until these calls have ended
    saturation       engines report a queue, while they run as many calls as ever, or a full KV cache: the limit is
                     lowered by the calls that only wait
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
UNMEASURED = 64
"""The first limit that is measured with engines that have room. At lower ones, a comparison would take more calls than
are lost by being too high."""
FREE, PEAK = 0.5, 0.8
"""Engines have room with less than the first share of their KV cache in use, unless calls wait while more than the
second share of the most that ever ran are running: calls also wait for the next step of an engine that could run more.
With room, fewer calls are no better, and those that take long do so for other reasons."""
CUT = 0.7
FINEST = 1.05
"""The search ends if the lowest limit that is not worth it is less than this factor above the best one."""
LEAP, STEP = 2.0, 1.5
"""The step up while the throughput follows the limit, and afterwards."""
STEEP = 0.5
"""It follows if it rises by more than the factor r**STEEP with r times as many calls in flight."""
ELASTICITY = 0.05
"""A limit that is r times higher must raise the throughput by the factor r**ELASTICITY."""
BETTER = 1.05
"""A lower limit must raise the throughput by this factor."""
CERTAIN = 1.0
"""A measurement ends early if it differs from what is needed by so many standard errors of calls that end at random."""
OVERLOADED = 0.1
"""Share of overloaded calls that is too high, in addition to twice the share at the last good limit."""
QUEUE = 0.1
"""Engines are saturated if more than this share of what they run waits."""
KV_FULL = 0.95
DROP = 0.8
"""A settled limit is reconsidered at once if its throughput falls below this share."""
CROWDED, DRAINED = 2.0, 1.25
"""An engine is crowded with more than so many times the calls as the best limit explains, until there are at most so
many times as many."""
COLLAPSE = 0.5
"""A higher limit is given up at once if the throughput falls below this share."""
MIN_CALLS, MAX_CALLS = 32, 8
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
    in_flight: float
    """Mean number of model calls in flight; the other rollouts are in their environments."""


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
    most_running: int = 0


class Concurrency:
    """Returns the limit for the next second. It has no clock and reads nothing itself."""

    def __init__(self, most: int, start: int = START) -> None:
        self._most = self._bound = most
        self.limit = self._target = self._from = max(1, min(start, most))
        self.why = "the rollouts are too few to measure more"
        """Why the limit is not higher."""
        self._best: Measured | None = None
        self._failed: int | None = None
        """The lowest limit above the best one that is known not to be worth it."""
        self._below: Measured | None = None
        """The highest limit below the best one that is known to be no better."""
        self._better: Measured | None = None
        """A limit that seems better than the best one, which is measured again."""
        self._tries_lower = True
        """Whether it is unknown if a lower limit is better."""
        self._has_room = False
        """Whether engines report that they have room."""
        self._most_running = 0
        """The most calls that engines ran at once, since the last time that the capacity may have fallen."""
        self._drains = False
        """Whether an engine that was crowded is still to recover."""
        self._step = LEAP
        self._multiplies = True
        """Whether a step multiplies the limit. Once one was too high, it adds a share of the calls in flight: if most
        rollouts are in their environments, the engine would get many times the calls that it had."""
        self._is_retry = False
        """Whether the limit was settled before."""
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
        if (engine := load.engine) is not None:
            self._most_running = max(self._most_running, engine.running)
            queued = 2 * engine.waiting > engine.running > PEAK * self._most_running
            self._has_room = engine.kv_cache_usage < FREE and not queued
        else:
            self._has_room = False
        if free_memory < ENOUGH_MEMORY:
            self._bound = self.limit if free_memory > LITTLE_MEMORY else max(1, self.limit * 9 // 10)
        if self.limit > self._bound:
            self._move(self._bound)
        self._target = min(self._target, self._bound)
        if (window := self._window) is None:
            self._await_effect(load, in_flight)
            return self.limit
        if in_flight < 0.9 * self.limit:  # too few rollouts are left: the limit has no effect
            self._window = _Window(now, load)
            return self.limit
        self._add(window, load)
        calls, overloads = load.finished - window.first.finished, _overloads(load) - _overloads(window.first)
        share = overloads / (overloads + calls) if overloads else 0.0
        certain = overloads - 2 * math.sqrt(overloads)  # some are due to chance
        if certain > (OVERLOADED + 2 * self._background) * (overloads + calls):
            self._cut(f"at {self.limit}, calls were rejected, timed out or were preempted")
        elif (measured := self._measured(window, load)) is not None:
            self._window = None
            self._decide(measured, window, share)
        return self.limit

    def _await_effect(self, load: ModelLoad, in_flight: int) -> None:
        """Approach the target, and begin to measure once every rollout has made a call at this limit."""
        best = self._best
        if self._moved_at is None or in_flight > 1.05 * self.limit + 1:
            self._moved_at, self._moved_s = load.finished, self._now
        calls = load.finished - self._moved_at
        if self._drains and best is not None:
            self._drain(best, load.in_flight, is_over=calls >= self.limit)
        elif best is not None and self._target > best.limit and self._is_too_much(best, load.in_flight, calls):
            self._refuse(best)
        elif self.limit < self._target:
            # Spread over the time from one call of a rollout to its next one: together, new rollouts flood the engine.
            share = (self._now - self._moved_s) / max(self._cycle_s, 1e-6)
            self.limit = min(self._from + math.ceil((self._target - self._from) * min(share, 1.0)), self._target)
            if self.limit == self._target:
                self._moved_at = None
        elif calls >= self.limit:
            if best is None and self.limit < UNMEASURED and self._has_room:
                self._move(min(2 * self.limit, UNMEASURED))
            if self._target == self.limit:
                self._window = _Window(self._now, load)

    def _add(self, window: _Window, load: ModelLoad) -> None:
        window.samples += 1
        window.in_flight += load.in_flight
        if load.engine is not None:
            window.running += load.engine.running
            window.waiting += load.engine.waiting
            window.kv_cache_usage += load.engine.kv_cache_usage
            window.most_running = max(window.most_running, load.engine.running)

    def _measured(self, window: _Window, load: ModelLoad) -> Measured | None:
        """Return the throughput at this limit, or None if it is not yet certain enough."""
        calls, failed = load.finished - window.first.finished, load.failed - window.first.failed
        best, elapsed_s, enough = self._best, self._now - window.started, max(MIN_CALLS, self.limit)
        in_flight = window.in_flight / window.samples
        if calls < enough or window.samples < MIN_SAMPLES:
            has_collapsed = best is not None and elapsed_s * best.rate * COLLAPSE > enough
            return Measured(self.limit, (calls - failed) / elapsed_s, calls, in_flight) if has_collapsed else None
        self._cycle_s = elapsed_s * self.limit / calls
        latency_s = (load.seconds - window.first.seconds) / calls
        # Little's law errs where the number in flight varies, and the count where calls end together.
        rate = (in_flight / max(latency_s, 1e-6) + calls / elapsed_s) / 2
        measured = Measured(self.limit, rate * (1 - failed / calls), calls, in_flight)
        if window.samples >= MAX_SAMPLES and calls >= MAX_CALLS * self.limit:
            return measured
        if self.settled and best is not None and measured.rate > DROP * best.rate:
            return None
        other = self._better or best
        if other is None or not measured.rate or not other.rate or other.limit == self.limit:
            return measured
        needed = _needed(other.limit, self.limit) if self._better is None else 1 / _needed(self.limit, other.limit)
        margin = math.log(measured.rate / other.rate / needed)
        return measured if abs(margin) > CERTAIN * math.sqrt(1 / calls + 1 / other.calls) else None

    def _is_too_much(self, best: Measured, in_flight: int, calls: int) -> bool:
        """Return whether a higher limit need not be measured: calls take twice as long, or only half as many finish."""
        if self._has_room:
            return False
        expected = best.in_flight * self._target / best.limit
        if in_flight > CROWDED * expected + 4 * math.sqrt(expected) + 4:
            return True
        expected = best.rate * (self._now - self._moved_s)
        return expected >= max(best.limit, MIN_CALLS) and calls < COLLAPSE * expected

    def _drain(self, best: Measured, in_flight: int, *, is_over: bool) -> None:
        """Go back to the best limit, and stay below it while the engine has more calls than at this limit.

        Otherwise, an engine that thrashes may keep thrashing at a limit with which it would never have begun to.
        """
        # If more calls are in flight than rollouts, other collectors have made them, and cut their part.
        excess = (in_flight - DRAINED * best.in_flight - 1) * min(best.limit / max(best.in_flight, 1.0), 1.0)
        if excess <= 0 or is_over:
            self._drains = False
            self._search(best)
        else:
            self.limit = max(best.limit // 2, min(self.limit, best.limit - int(excess)), 1)

    def _decide(self, measured: Measured, window: _Window, share: float) -> None:
        best, limit = self._best, measured.limit
        if (other := self._better) is not None:
            self._best, self._better = measured, None
            if other.rate >= measured.rate * _needed(limit, other.limit):
                self._best, worse = other, measured
            else:
                worse = other
            if worse.limit < self._best.limit:
                self._below = worse
            else:
                self._failed = worse.limit
            self._search(self._best)
            return
        if best is not None and best.limit == limit and measured.rate < DROP * best.rate:
            if measured.in_flight > CROWDED * best.in_flight:
                self._cut(f"at {limit}, the engines were overloaded")
                return
            # Congested, or a slower workload: after a fresh measurement, a lower limit shows which, then a higher one.
            self._failed, self._below, self._tries_lower, self._held_until = math.ceil(STEP * limit), None, True, None
            self._step, self._is_retry, self._holds, self._best = STEP, False, 1, None
            self._most_running = window.most_running
            return
        if self._held_until is not None:
            if self._now < self._held_until:
                return
            self._failed, self._below, self._tries_lower, self._held_until = None, None, False, None
            self._step, self._is_retry, self._holds = STEP, True, min(2 * self._holds, MAX_HOLDS)
            self._most_running = window.most_running
            best = None
        running, waiting = window.running / window.samples, window.waiting / window.samples
        kv_cache_usage = window.kv_cache_usage / window.samples
        is_full = running > PEAK * self._most_running or kv_cache_usage > FREE
        if is_full and waiting > QUEUE * running + 1:
            calls = min(measured.in_flight, limit)
            excess = calls * (waiting - QUEUE * running) / (running + waiting)
            self.why = f"at {limit}, the engines ran {running:.0f} calls and {waiting:.0f} waited"
            self._best, self._background = measured, share
            self._hold(max(1, limit // 2, limit - int(excess)))
            return
        if best is None or best.limit == limit:
            self._best, self._background = measured, share
        elif limit < best.limit:
            if measured.rate >= best.rate * _needed(best.limit, limit):
                self._better = measured
                self._move(best.limit)
                return
            self._below = measured
        elif measured.rate >= best.rate * _needed(best.limit, limit):
            if measured.rate >= best.rate * (measured.in_flight / max(best.in_flight, 1e-6)) ** STEEP:
                self._step, self._holds = LEAP if self._multiplies else 2 * self._step, 1
            elif self._is_retry:
                self._better = measured
                self._move(best.limit)
                return
            else:
                self._step = STEP
            # The first limit shows the faults that have other causes; more of them at a higher one are overload.
            self._best, self._background, self._below = measured, min(share, self._background), best
        else:
            self._refuse(best)
            return
        if kv_cache_usage > KV_FULL and self._best is measured:
            self.why = f"at {limit}, the engines' KV cache was {kv_cache_usage:.0%} full"
            self._hold(limit)
        else:
            assert self._best is not None
            self._search(self._best)

    def _refuse(self, best: Measured) -> None:
        self._failed, self.why = self._target, f"at {self._target}, the throughput was not worth it"
        self._drains, self._step, self._multiplies = True, STEP, False
        self._move(best.limit)

    def _search(self, best: Measured) -> None:
        """Go to the next limit to measure, or keep the best one if there is none."""
        limit, failed, below = best.limit, self._failed, self._below
        own = min(best.in_flight, limit)  # more calls are those of other collectors
        if failed is None:
            base = limit if self._multiplies else own
            candidate = min(limit + math.ceil((self._step - 1) * base), 2 * limit, self._bound)
            if candidate > limit:
                self._move(candidate)
            else:
                self.why = "open files and memory allow no more"
                self._hold(limit)
        elif below is None and limit > 1 and self._tries_lower and not self._has_room:
            self._move(limit // 2)
        else:
            finest = STEP + 0.05 if self._is_retry else FINEST
            above = min(round(math.sqrt(limit * failed)), limit + math.ceil(own))
            if failed / limit >= finest and limit < above < failed:
                self._move(above)
                return
            if below is not None and limit / below.limit >= finest:
                between = round(math.sqrt(limit * below.limit))
                # The throughput rises at most as the limit does.
                if below.limit < between < limit and below.rate * between / below.limit > BETTER * best.rate:
                    self._move(between)
                    return
            self._hold(limit)

    def _hold(self, limit: int) -> None:
        self._move(limit)
        self._held_until = self._now + self._holds * max(HOLD_S, HOLD_CALLS * self._cycle_s)

    def _cut(self, why: str) -> None:
        best, limit, self.why = self._best, self.limit, why
        self._failed, self._tries_lower, self._held_until, self._is_retry = limit, False, None, False
        self._better, self._drains = None, False
        if best is not None and best.limit < limit:
            self._move(best.limit)
        else:
            self._best = None
            self._move(max(1, int(CUT * limit)))

    def _move(self, limit: int) -> None:
        limit = min(limit, self._bound)
        if limit != self.limit or self._window is None:
            self._moved_at = None
        self._window, self._target, self._from = None, limit, self.limit
        self.limit = min(limit, self.limit)


def _needed(before: int, now: int) -> float:
    """Return the throughput that makes the limit `now` better than `before`, as a multiple of that at `before`."""
    return (now / before) ** ELASTICITY if now > before else BETTER


def _overloads(load: ModelLoad) -> int:
    return load.rejected + (load.engine.preemptions if load.engine else 0)


class LoadReader:
    """Reads the load of all instances of the model servers that a collection uses, as one sum."""

    def __init__(self, client: ServerClient, servers: Collection[str]) -> None:
        self._client = client
        self._servers = servers
        self._latest: dict[str, ModelLoad] = {}
        self._ended = ModelLoad()
        """The counters of instances before they restarted."""
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
        # Without any instance, it is not known yet what the servers report.
        self.supported = bool(loads) or bool(self._servers and not urls)
        idle = {"in_flight": 0, "engine": None}
        absent = {url: load.model_copy(update=idle) for url, load in self._latest.items() if url not in loads}
        for url in loads.keys() & self._latest.keys():
            if loads[url].finished < self._latest[url].finished:
                self._ended = summed([self._ended, self._latest[url].model_copy(update=idle)])
        self._latest = {**absent, **loads}
        return summed([self._ended, *self._latest.values()])
