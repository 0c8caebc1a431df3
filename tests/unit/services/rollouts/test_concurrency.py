"""Concurrency with a simulated engine in virtual time: what it finds is near the best limit set by hand."""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollyard.records.activity import EngineLoad, ModelLoad
from rollyard.services.http.client import ServerClient
from rollyard.services.rollouts.concurrency import Concurrency, LoadReader

SEEDS = (1, 2)


@dataclass
class Engine:
    """Serves `capacity` calls at once; beyond `most` in it, each takes longer. Episodes call it in a loop."""

    capacity: int = 1 << 30
    most: float = float("inf")
    """Beyond this number of calls, the engine thrashes."""
    batch: float = float("inf")
    """With so many running calls, each takes twice as long as alone."""
    kv_calls: float = float("inf")
    """The KV cache has room for so many calls; with more, some are preempted and done again."""
    environments: int = 1 << 30
    """Environments that compute at once."""
    drift: float = 0.0
    """By how much the speed of everything changes every five seconds, as a standard deviation."""
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
    slowness: float = 1.0
    computing: int = 0
    queue: deque[tuple[float, int]] = field(default_factory=deque)
    steps: deque[int] = field(default_factory=deque)
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    serial: int = 0

    def __post_init__(self) -> None:
        if self.drift:
            self.at(0.0, self.change_speed)

    def change_speed(self) -> None:
        self.slowness = self.slowness**0.9 * math.exp(self.rng.gauss(0.0, self.drift))
        self.at(self.now + 5.0, self.change_speed)

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
            overflow = max(1.0, self.served / self.kv_calls)
            if crowd > 1 or self.rng.random() < overflow - 1:
                self.preemptions += 1
            slowness = self.slowness * crowd * overflow**1.5 * (1 + self.served / self.batch)
            took = self.latency_s * slowness * self.rng.uniform(1 - self.jitter, 1 + self.jitter)
            self.at(self.now + took, lambda started=started, turns=turns: self.end(started, turns))  # type: ignore[misc]

    def end(self, started: float, turns: int) -> None:
        self.served -= 1
        self.finished += 1
        self.seconds += self.now - started
        self.steps.append(turns - 1)
        self.compute()
        self.serve()

    def compute(self) -> None:
        while self.steps and self.computing < self.environments:
            turns = self.steps.popleft()
            self.computing += 1
            self.at(self.now + self.think_s * self.slowness, lambda turns=turns: self.next(turns))  # type: ignore[misc]

    def next(self, turns: int) -> None:
        self.computing -= 1
        self.compute()
        if turns == 0:
            if self.episodes > self.limit:
                self.episodes -= 1
                return
            turns = self.turns
        self.call(turns)

    def load(self) -> ModelLoad:
        engine = None
        if self.reports:
            engine = EngineLoad(
                running=self.served,
                waiting=len(self.queue),
                kv_cache_usage=min(self.served / self.kv_calls, 1.0),
                preemptions=self.preemptions,
            )
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
    for limit in (4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 576):
        engine = make()
        engine.run(seconds / 2, limit)
        before = engine.finished
        engine.run(seconds, limit)
        rates.append((engine.finished - before) / (seconds / 2))
    return max(rates)


ENGINES: dict[str, Callable[[], Engine]] = {
    "long calls": lambda: Engine(48, 96, latency_s=10),
    "short calls": lambda: Engine(48, 96, latency_s=0.5, think_s=0.05),
    "calls of equal length": lambda: Engine(48, 96, jitter=0),
    "calls of very different lengths": lambda: Engine(48, 96, jitter=1),
    "slow environments": lambda: Engine(48, 96, think_s=6),
    "environments that are ten times as slow": lambda: Engine(48, latency_s=0.5, think_s=5),
    "environments that are ten times as slow, and an engine that thrashes": lambda: Engine(
        48, 96, latency_s=0.5, think_s=5
    ),
    "environments that are ten times as slow, with metrics": lambda: Engine(
        48, 96, latency_s=0.5, think_s=5, reports=True
    ),
    "few environments": lambda: Engine(think_s=0.5, environments=8),
    "a large engine": lambda: Engine(200),
    "fewer calls than the first limit": lambda: Engine(8, 12),
    "a latency that rises with the number of calls": lambda: Engine(256, batch=30),
    "an endpoint that rejects calls": lambda: Engine(80, rejects_above=90),
    "a KV cache for few calls": lambda: Engine(256, kv_calls=60),
    "a KV cache for few calls, with metrics": lambda: Engine(256, kv_calls=60, reports=True),
    "an engine with metrics": lambda: Engine(48, 96, reports=True),
    "a large engine with metrics": lambda: Engine(200, 260, reports=True),
}


@pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES.keys())
def test_the_throughput_is_within_five_percent_of_the_best_limit_set_by_hand(make: Callable[[], Engine]) -> None:
    seconds, found = max(200 * (make().latency_s + make().think_s), 400), []
    for seed in SEEDS:
        engine = make()
        engine.rng.seed(seed)
        found.append(collect(engine, Concurrency(4096), seconds))
    assert statistics.mean(found) > 0.95 * best_by_hand(make, seconds / 6)


@pytest.mark.parametrize("drift", [0.0, 0.1])
def test_where_all_limits_are_as_good_the_limit_stays_where_the_model_is_busy(drift: float) -> None:
    engine, controller = Engine(4, latency_s=0.1, think_s=0.1, jitter=0.9, drift=drift), Concurrency(4096)
    for _ in range(12):
        collect(engine, controller, 300)
        assert controller.limit >= 6


@pytest.mark.parametrize("reports", [False, True])
def test_several_collectors_of_one_engine_find_their_parts(reports: bool) -> None:
    engine, controllers, middle = Engine(200, 400, reports=reports), [Concurrency(4096) for _ in range(4)], 0
    for second in range(800):
        parts = [controller.limit for controller in controllers]
        engine.run(second, sum(parts))
        for controller, part in zip(controllers, parts, strict=True):
            controller.update(engine.now, engine.load(), round(engine.episodes * part / sum(parts)))
        if second == 400:
            middle = engine.finished
    assert (engine.finished - middle) / 399 > 0.95 * 200 / 2


def test_rejected_calls_cut_the_limit_until_calls_are_accepted() -> None:
    engine, controller = Engine(200, latency_s=1.0), Concurrency(4096)
    collect(engine, controller, 300)
    before = controller.limit
    engine.rejects_above = 150
    collect(engine, controller, 5)
    assert controller.limit < 0.9 * before
    collect(engine, controller, 60)
    rejected, finished = engine.rejected, engine.finished
    collect(engine, controller, 60)
    assert engine.rejected - rejected < 0.2 * (engine.finished - finished)


def test_rejections_that_have_nothing_to_do_with_the_load_do_not_cut_the_limit() -> None:
    assert collect(Engine(80, 160, faults=0.05), Concurrency(4096), 600) > 0.95 * 80 / 2


def test_the_limit_follows_the_capacity() -> None:
    engine, controller = Engine(32, 64), Concurrency(4096)
    assert collect(engine, controller, 400) > 0.95 * 32 / 2
    small = controller.limit
    engine.capacity, engine.most = 128, 256
    assert collect(engine, controller, 800) > 0.95 * 128 / 2
    large = controller.limit
    engine.capacity, engine.most = 32, 64
    assert collect(engine, controller, 1200) > 0.95 * 32 / 2
    assert small < large > controller.limit


def test_an_engine_that_loses_half_its_replicas_gets_fewer_calls_than_before() -> None:
    engine, controller = Engine(256, kv_calls=850, reports=True), Concurrency(512)
    collect(engine, controller, 400)
    assert controller.limit > 256
    engine.capacity = 100
    collect(engine, controller, 600)
    assert controller.limit < 200


def test_an_engine_that_no_longer_reports_its_load_has_no_room_that_is_known() -> None:
    engine, controller = Engine(16, reports=True), Concurrency(512)
    engine.run(1, 16)
    controller.update(1, engine.load(), 16)
    assert controller._has_room
    engine.reports = False
    controller.update(2, engine.load(), 16)
    assert not controller._has_room


def test_calls_that_would_only_wait_in_the_engine_are_not_sent() -> None:
    controller = Concurrency(4096)
    collect(Engine(8, think_s=0.0, reports=True), controller, 120)
    assert 8 <= controller.limit <= 12 and "waited" in controller.why


def engine_with_room(seed: int, drift: float = 0.0) -> Engine:
    """It has 64 places, and a call takes the longer the more run, as with vLLM on a CPU."""
    engine = Engine(64, batch=8.6, latency_s=0.27, think_s=0.05, drift=drift, reports=True)
    engine.rng.seed(seed)
    return engine


def test_with_an_engine_that_has_room_the_whole_collection_takes_about_as_long_as_with_the_best_limit() -> None:
    by_hand, found = 0.0, 0.0
    for seed in range(8):
        for controller in (None, Concurrency(4096)):
            engine = engine_with_room(seed)
            while engine.finished < 2700:
                engine.run(engine.now + 1, controller.limit if controller else 64)
                if controller:
                    controller.update(engine.now, engine.load(), engine.episodes)
            by_hand, found = (by_hand, found + engine.now) if controller else (by_hand + engine.now, found)
    assert by_hand > 0.96 * found


@pytest.mark.parametrize("seed", range(8))
def test_a_host_whose_speed_varies_does_not_lower_the_limit_of_an_engine_that_has_room(seed: int) -> None:
    engine, controller, limits = engine_with_room(seed, drift=0.2), Concurrency(4096), []
    for second in range(400):
        engine.run(second, controller.limit)
        limits.append(controller.update(engine.now, engine.load(), engine.episodes))
    assert limits.index(64) < 30 and min(limits[limits.index(64) :]) > 0.8 * 64


def test_calls_that_wait_for_the_next_step_of_an_engine_with_room_do_not_stop_the_growth() -> None:
    controller = Concurrency(4096)
    for second in range(60):
        limit = controller.limit
        running, waiting = (limit, 0) if second % 2 else (limit // 8, limit // 2)
        engine = EngineLoad(running=running, waiting=waiting, kv_cache_usage=0.1)
        load = ModelLoad(finished=limit * second, seconds=limit * second, in_flight=limit // 2, engine=engine)
        controller.update(second, load, limit)
    assert controller.limit > 64


def test_a_full_kv_cache_stops_the_growth() -> None:
    controller = Concurrency(4096)
    for second in range(60):
        engine = EngineLoad(running=16, kv_cache_usage=0.97)
        controller.update(
            second, ModelLoad(finished=16 * second, seconds=16.0 * second, in_flight=16, engine=engine), 16
        )
    assert controller.limit == 16 and "KV cache" in controller.why


def test_without_more_rollouts_the_limit_does_not_grow() -> None:
    controller = Concurrency(4096)
    for second in range(60):
        controller.update(second, ModelLoad(finished=10 * second, seconds=10.0 * second, in_flight=10), 10)
    assert controller.limit == 16


def test_the_limit_stays_within_what_files_and_memory_allow() -> None:
    engine, controller = Engine(500), Concurrency(100)
    collect(engine, controller, 120)
    assert controller.limit == 100
    controller.update(engine.now + 1, engine.load(), 100, free_memory=0.04)
    assert controller.limit == 90


class FakeStack:
    """The client of model servers; `loads` has the finished calls of the instances that are in the directory now."""

    def __init__(self) -> None:
        self.loads: dict[str, int] = {}
        self.foreign: set[str] = set()
        self.book = self

    async def current(self) -> Any:
        return SimpleNamespace(servers={"model": tuple(self.loads)})

    def foreign_instance(self, url: str) -> str | None:
        return url if url in self.foreign else None

    async def get_from(self, url: str, path: str, timeout_s: float) -> Any:
        return SimpleNamespace(status=200, body=ModelLoad(finished=self.loads[url]).model_dump_json().encode())


async def finished(reader: LoadReader) -> int:
    load = await reader.read()
    assert load is not None
    return load.finished


async def test_an_instance_that_is_away_for_a_while_or_restarts_is_counted_once() -> None:
    stack = FakeStack()
    reader = LoadReader(cast(ServerClient, stack), ["model"])
    found = []
    for loads in ({"a": 10, "b": 5}, {"b": 6}, {"a": 12, "b": 6}, {"a": 3, "b": 6}):
        stack.loads = loads
        found.append(await finished(reader))
    assert found == [15, 16, 18, 12 + 3 + 6]


@pytest.mark.parametrize("servers", [[], ["model"]])
async def test_model_servers_of_another_framework_or_none_at_all_report_no_load(servers: list[str]) -> None:
    stack = FakeStack()
    stack.loads, stack.foreign = {"a": 1}, {"a"}
    reader = LoadReader(cast(ServerClient, stack), servers)
    await reader.read()
    assert not reader.supported
