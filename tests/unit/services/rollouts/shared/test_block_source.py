"""BlockSource: which rollouts a worker starts, while its leases come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rollyard.records.rollouts.rollout_keys import Key
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import Rollout
from rollyard.services.rollouts.shared.block_finder import WorkerParts
from rollyard.services.rollouts.shared.block_source import BlockSource
from rollyard.services.rollouts.shared.earlier_rows import EarlierRows
from rollyard.services.rollouts.shared.foreign_shards import ForeignShards
from rollyard.services.rollouts.shared.heartbeats import HeartbeatWriter
from rollyard.services.rollouts.shared.leases import Leases
from rollyard.services.rollouts.shared.owners import OwnerWatch, this_owner
from rollyard.services.rollouts.shared.shard_store import ShardStore
from rollyard.services.rollouts.shared.shared_paths import RoundPaths
from tests.support.waiting import deadline_s, until
from tests.unit.services.rollouts.shared.workers import (
    MANIFEST,
    Clock,
    beat,
    blocks,
    lease_block,
    new_round,
    row,
    write_shard,
)

BLOCKS = blocks(6, 2, 4)
"""Three blocks of two tasks with two repeats."""


class SixTasks:
    """The tasks of a collection."""

    def __init__(self) -> None:
        self.count = 6
        self.agents = {"agent"}
        self.digest = ""
        self.files = set[Path]()
        self.identity: Json = {}

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        return (Rollout(task, repeat, "agent", {}) for task in range(self.count) for repeat in range(repeats))


@dataclass
class Worker:
    """A worker with a source, and the test in the collector's place."""

    parts: WorkerParts
    paths: RoundPaths
    clock: Clock
    source: BlockSource
    draining: asyncio.Event
    lines: list[str] = field(default_factory=list)

    async def start(self) -> Key:
        """Start the next rollout."""
        rollout = await asyncio.wait_for(anext(self.source), deadline_s())
        return (rollout.task_index, rollout.rollout_index)

    def measure(self, key: Key) -> None:
        """End a rollout with a reward."""
        self.parts.store.append(key, orjson.dumps(row(key, "mine")))
        self.source.ended(key)

    async def collect_rest(self) -> list[Key]:
        """Start and measure everything that is left."""
        keys = []
        async with asyncio.timeout(deadline_s()):
            async for rollout in self.source:
                keys.append((rollout.task_index, rollout.rollout_index))
                self.measure(keys[-1])
        return keys


@asynccontextmanager
async def worker(folder: Path, lease_s: float = 60.0, before: EarlierRows | None = None) -> AsyncIterator[Worker]:
    paths, clock, me = new_round(folder), Clock(), this_owner("me")
    store = ShardStore(paths.shard(me.token), MANIFEST, {}, before or EarlierRows(), max_attempts=3)
    parts = WorkerParts(
        owner=me,
        blocks=BLOCKS,
        leases=Leases(paths),
        watch=OwnerWatch(paths.workers, lease_s, clock),
        heartbeat=HeartbeatWriter(paths.workers, me, lease_s, clock),
        store=store,
        foreign=ForeignShards(paths, BLOCKS.expected, me.token),
    )
    parts.heartbeat.beat()
    draining, lines = asyncio.Event(), list[str]()
    source = BlockSource(parts, SixTasks(), draining, lines.append)
    finishing = asyncio.create_task(source.keep_finishing())
    try:
        yield Worker(parts, paths, clock, source, draining, lines)
    finally:
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)
        store.close()


async def test_a_worker_leases_a_block_only_when_all_rollouts_before_it_have_been_started(tmp_path: Path) -> None:
    async with worker(tmp_path) as me:
        leased = []
        for _ in range(6):
            await me.start()
            leased.append(len(me.parts.leases.table().generations))
        assert leased == [1, 1, 1, 1, 2, 2]


async def test_all_rollouts_are_started_once_and_every_block_is_marked_as_done(tmp_path: Path) -> None:
    async with worker(tmp_path) as me:
        assert await me.collect_rest() == [(task, repeat) for task in range(6) for repeat in range(2)]
        assert me.source.all_done
        assert me.parts.leases.table().done == {0, 1, 2}


async def test_rollouts_of_the_output_need_no_lease(tmp_path: Path) -> None:
    before = EarlierRows()
    for key in BLOCKS.keys(1):
        before.done.add(key)
    before.permanently_failed.add((0, 0))
    async with worker(tmp_path, before=before) as me:
        assert await me.collect_rest() == [(0, 1), (1, 0), (1, 1), (4, 0), (4, 1), (5, 0), (5, 1)]
        assert me.parts.leases.table().generations.keys() == {0, 2}


async def test_a_block_that_is_taken_over_is_completed_without_repeating_its_rollouts(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    lease_block(paths, 1, "dead-1")
    write_shard(paths, "dead-1", [row((2, 1), "dead")])
    beat(paths, "dead-1", ended=True)
    async with worker(tmp_path) as me:
        keys = await me.collect_rest()
        assert len(keys) == 11
        assert (2, 1) not in keys
        assert any("dead (elsewhere" in line for line in me.lines)


async def test_a_worker_waits_for_the_blocks_of_others_until_they_are_done_or_expire(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    for block, token in enumerate(("busy-1", "busy-1", "silent-1")):
        lease_block(paths, block, token)
        beat(paths, token)
    async with worker(tmp_path) as me:
        rest = asyncio.create_task(me.collect_rest())
        await until(lambda: any("at most 12, of busy" in line for line in me.lines))
        for block in range(2):
            me.parts.leases.mark_done(block)
        me.clock.now += 61
        assert await rest == list(BLOCKS.keys(2))


async def test_a_drain_releases_a_block_once_none_of_its_rollouts_is_in_flight(tmp_path: Path) -> None:
    async with worker(tmp_path) as me:
        first, second = await me.start(), await me.start()
        other = OwnerWatch(me.paths.workers, 60.0)
        me.draining.set()
        me.measure(first)
        await asyncio.sleep(0.1)
        lease = me.parts.leases.lease(0, 1)
        assert not other.is_free(lease, "")
        me.measure(second)
        await until(lambda: other.is_free(lease, ""))
        assert me.parts.leases.table().done == set()


async def test_a_worker_that_stood_still_gives_up_the_blocks_that_others_have_taken(tmp_path: Path) -> None:
    async with worker(tmp_path) as me:
        assert await me.start() == (0, 0)
        me.clock.now += 61
        assert lease_block(me.paths, 0, "taker-1") == 2
        beat(me.paths, "taker-1")
        assert await me.start() == (2, 0)  # the rest of block 0 belongs to the taker
        me.measure((0, 0))  # its own rollout was in flight: the merge chooses


async def test_a_worker_that_cannot_renew_its_leases_starts_nothing_until_it_can(tmp_path: Path) -> None:
    async with worker(tmp_path) as me:
        await me.start()
        away = me.paths.workers.rename(tmp_path / "away")
        me.clock.now += 61
        starting = asyncio.create_task(me.start())
        await until(lambda: any("no rollouts are started" in line for line in me.lines))
        await asyncio.sleep(0.05)
        assert not starting.done()
        away.rename(me.paths.workers)
        assert await starting == (0, 1)


async def test_a_rollout_in_flight_that_another_worker_measured_meanwhile_is_stored_and_left_to_the_merge(
    tmp_path: Path,
) -> None:
    async with worker(tmp_path) as me:
        assert await me.start() == (0, 0)
        lease_block(me.paths, 0, "taker-1")
        write_shard(me.paths, "taker-1", [row(key, "taker") for key in BLOCKS.keys(0)])
        beat(me.paths, "taker-1", ended=True)
        me.clock.now += 61  # the worker notices the loss, and takes the block over again
        rest = asyncio.create_task(me.collect_rest())
        await until(lambda: me.parts.leases.table().generations.get(0) == 3)
        me.measure((0, 0))
        assert await rest == [*BLOCKS.keys(1), *BLOCKS.keys(2)]
        assert me.source.all_done
