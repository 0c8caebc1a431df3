"""Concurrency with a simulated engine in virtual time: what it finds is near the best limit set by hand."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rollyard.records.activity import EngineLoad, ModelLoad
from rollyard.services.rollouts.concurrency import Concurrency


@dataclass
class Engine:
    """Serves `capacity` calls at once; beyond `most` in it, each takes longer. Episodes call it in a loop."""

    capacity: int
    most: float = float("inf")
    """Beyond this number of calls, the engine thrashes."""
    latency_s: float = 2.0
    think_s: float = 0.5
    rejects_above: float = float("inf")
    faults: float = 0.0
    """Share of calls that are rejected for reasons that have nothing to do with the load."""
    reports: bool = False
    jitter: float = 0.3
    turns: int = 6
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    now: float = 0.0
    limit: int = 0
    episodes: int = 0
    served: int = 0
    finished: int = 0
    rejected: int = 0
    preemptions: int = 0
    seconds: float = 0.0
    queue: deque[tuple[float, int]] = field(default_factory=deque)
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    serial: int = 0

    def at(self, time: float, event: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.events, (time, self.serial, event))

    def run(self, until: float, limit: int) -> None:
        self.limit = limit
        while self.episodes < limit:
            self.episodes += 1
            self.call(self.turns)
        while self.events and self.events[0][0] <= until:
            self.now, _, event = heapq.heappop(self.events)
            event()
        self.now = until

    def call(self, turns: int) -> None:
        if len(self.queue) + self.served >= self.rejects_above or self.rng.random() < self.faults:
            self.rejected += 1
            self.at(self.now + 1.0, lambda: self.call(turns))
            return
        self.queue.append((self.now, turns))
        self.serve()

    def serve(self) -> None:
        while self.queue and self.served < self.capacity:
            started, turns = self.queue.popleft()
            self.served += 1
            crowd = max(1.0, (self.served + len(self.queue)) / self.most)
            if crowd > 1 and self.reports:
                self.preemptions += 1
            took = self.latency_s * crowd**2 * self.rng.uniform(1 - self.jitter, 1 + self.jitter)
            self.at(self.now + took, lambda started=started, turns=turns: self.end(started, turns))  # type: ignore[misc]

    def end(self, started: float, turns: int) -> None:
        self.served -= 1
        self.finished += 1
        self.seconds += self.now - started
        self.serve()
        self.at(self.now + self.think_s, lambda: self.next(turns - 1))

    def next(self, turns: int) -> None:
        if turns == 0:
            if self.episodes > self.limit:
                self.episodes -= 1
                return
            turns = self.turns
        self.call(turns)

    def load(self) -> ModelLoad:
        engine = None
        if self.reports:
            engine = EngineLoad(running=self.served, waiting=len(self.queue), preemptions=self.preemptions)
        return ModelLoad(
            finished=self.finished,
            seconds=self.seconds,
            in_flight=self.served + len(self.queue),
            rejected=self.rejected,
            engine=engine,
        )


def collect(engine: Engine, controller: Concurrency, seconds: float) -> float:
    """Let the controller choose for some virtual seconds; return the calls per second of the last half."""
    start, middle = engine.now, 0
    for tick in range(int(seconds)):
        engine.run(start + tick, controller.limit)
        controller.update(engine.now, engine.load(), engine.episodes)
        if tick == int(seconds) // 2:
            middle = engine.finished
    return (engine.finished - middle) / (seconds - int(seconds) // 2 - 1)


def best_by_hand(make: Callable[[], Engine], seconds: float = 240) -> float:
    rates = []
    for limit in (4, 8, 16, 32, 48, 64, 96, 128, 192, 256):
        engine = make()
        engine.run(seconds / 2, limit)
        before = engine.finished
        engine.run(seconds, limit)
        rates.append((engine.finished - before) / (seconds / 2))
    return max(rates)
