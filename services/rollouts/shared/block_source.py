"""BlockSource: leases blocks one after the other and yields their rollouts to the collector."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

from rollyard.records.errors import RunError
from rollyard.records.rollouts.rollout_keys import Key
from rollyard.services.datasets.tasks import Rollout, Tasks
from rollyard.services.rollouts.shared.block_finder import BlockFinder, LeasedBlock, Survey, WorkerParts, describe

_FIRST_POLL_S = 0.1
_LONGEST_POLL_S = 5.0
_RETRY_S = 1.0


@dataclass
class HeldBlock:
    """A block that this worker has leased."""

    block: int
    generation: int
    pending: set[Key]
    """Its rollouts that are neither measured nor permanently failed."""


class BlockSource(AsyncIterator[Rollout]):
    """The rollouts of the blocks that this worker leases. It ends when every block of the collection is done.

    A block is leased when a slot of the collector is free and every rollout of the blocks before it has been started.
    """

    def __init__(
        self, parts: WorkerParts, tasks: Tasks, draining: asyncio.Event, print_line: Callable[[str], None]
    ) -> None:
        self._parts = parts
        self._draining = draining
        self._print_line = print_line
        self._finder = BlockFinder(parts, tasks, print_line)
        self._starting = asyncio.Lock()
        self._current: HeldBlock | None = None
        self._held: dict[int, HeldBlock] = {}
        self._in_flight: set[Key] = set()
        self._completed: list[HeldBlock] = []
        self._finishing = threading.Lock()
        self._ended = asyncio.Event()
        """Set when a rollout has ended."""
        self._marked = asyncio.Event()
        """Set when a block was marked as done."""
        self._lapses = 0
        self._waiting_for = ""
        self.all_done = False
        """True once every block of the collection is done."""

    def __aiter__(self) -> BlockSource:
        return self

    async def __anext__(self) -> Rollout:
        async with self._starting:
            while not self._draining.is_set():
                if self._current is not None:
                    if not await self._is_still_leased():
                        continue
                    if (rollout := self._next_pending(self._current)) is not None:
                        self._in_flight.add((rollout.task_index, rollout.rollout_index))
                        return rollout
                    self._current = None
                if not await self._lease_next():
                    break
            raise StopAsyncIteration

    def ended(self, key: Key) -> None:
        """Note that a rollout is no longer in flight."""
        self._in_flight.discard(key)
        if (held := self._held.get(self._parts.blocks.of(key))) is None:
            return
        if self._parts.store.is_settled(key):
            held.pending.discard(key)
        self._complete_if_settled(held)
        self._ended.set()

    async def keep_finishing(self) -> None:
        """Mark completed blocks as done, and release unfinished ones when the collection drains, until cancelled."""
        failed = False
        while True:
            if not self._draining.is_set():
                await _first_of((self._ended, self._draining), None)
            self._ended.clear()
            try:
                await asyncio.to_thread(self._finish)
                if self._draining.is_set():
                    await asyncio.to_thread(self._release_idle)
            except OSError as error:
                if not failed:
                    self._print_line(f"the folder of the leases cannot be written ({error.strerror}); trying again")
                failed = True
                await asyncio.sleep(_RETRY_S)
                self._ended.set()
                continue
            failed = False
            self._marked.set()
            if self._draining.is_set():
                await self._ended.wait()

    def close(self) -> None:
        """Mark completed blocks as done. The other leases end with the last heartbeat."""
        with suppress(OSError):  # the worker that takes over the block reads its rollouts from the shard
            self._finish()

    def _complete_if_settled(self, held: HeldBlock) -> None:
        if not held.pending and self._held.pop(held.block, None) is not None:
            self._completed.append(held)
            self._ended.set()

    def _finish(self) -> None:
        with self._finishing:  # a cancelled `keep_finishing` may leave a thread here
            if completed := list(self._completed):
                self._parts.store.sync()
            for held in completed:
                self._parts.leases.mark_done(held.block)
                self._completed.remove(held)

    def _release_idle(self) -> None:
        """Release the blocks of which no rollout is in flight, so that other workers need not wait."""
        for held in list(self._held.values()):
            if self._in_flight.isdisjoint(held.pending):
                self._held.pop(held.block, None)
                self._parts.heartbeat.release(held.block, held.generation)

    async def _is_still_leased(self) -> bool:
        """Return whether the current block is still leased by this worker.

        If no heartbeat could be written for a whole lease, wait until one can: the blocks may have been taken.
        """
        heartbeat = self._parts.heartbeat
        if heartbeat.is_current and heartbeat.lapses == self._lapses:
            return True
        if not heartbeat.is_current:
            self._print_line("no heartbeat could be written for a whole lease; no rollouts are started until one can")
        while not self._draining.is_set() and not (heartbeat.is_current and heartbeat.lapses == self._lapses):
            try:
                await asyncio.to_thread(heartbeat.beat)
                lapses = heartbeat.lapses
                await self._give_up_taken()
                self._lapses = lapses
            except OSError:
                await _first_of((self._draining,), _RETRY_S)
        return self._current is not None

    async def _give_up_taken(self) -> None:
        """Give up the blocks that other workers have taken or finished."""
        table = await asyncio.to_thread(self._finder.refresh)
        for held in list(self._held.values()):
            if table.generations.get(held.block, 0) > held.generation or held.block in table.done:
                self._held.pop(held.block, None)
                if self._current is held:
                    self._current = None

    def _next_pending(self, held: HeldBlock) -> Rollout | None:
        """Return the block's next rollout that must be started; None at the end of the block."""
        while (rollout := self._finder.next_of(held.block)) is not None:
            key = (rollout.task_index, rollout.rollout_index)
            if key in held.pending and key not in self._in_flight:
                return rollout
        return None

    async def _lease_next(self) -> bool:
        """Lease a block and make it the current one; return False if all are done or the collection drains.

        Raises RunError if the folder of the leases cannot be used for two leases.
        """
        pause_s, failing_since = _FIRST_POLL_S, 0.0
        while not self._draining.is_set():
            try:
                found = await self._look_for_block()
            except OSError as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > 2 * self._lease_s:
                    raise RunError(
                        f"the folder of the leases cannot be used: {error}. Repeat the command when it can be written"
                    ) from error
                await _first_of((self._draining,), _RETRY_S)
                continue
            failing_since = 0.0
            if isinstance(found, LeasedBlock):
                self._waiting_for = ""
                self._current = self._hold(found)
                return True
            if found.has_free:
                self._finder.start_over()
                continue
            if not found.unfinished:
                self.all_done = True
                return False
            self._report_waiting(found)
            await _first_of((self._marked, self._draining), min(pause_s, _LONGEST_POLL_S, self._lease_s / 4))
            pause_s *= 1.5
        return False

    async def _look_for_block(self) -> LeasedBlock | Survey:
        """Lease a block among the rows that are left in this pass, or return the state of all blocks."""
        leased = await asyncio.to_thread(self._finder.next_lease, self._busy())
        if leased is not None:
            return leased
        await self._give_up_taken()
        self._marked.clear()
        return await asyncio.to_thread(self._finder.survey, self._busy())

    def _busy(self) -> frozenset[int]:
        """Return the blocks that this worker has leased and that are not marked as done yet."""
        return frozenset([*self._held, *(held.block for held in self._completed)])

    def _hold(self, leased: LeasedBlock) -> HeldBlock:
        store = self._parts.store
        if leased.before is not None:
            for key in leased.before.measured:
                if key not in self._in_flight:  # this worker's own rollout ends later, and the merge chooses
                    store.done.add(key)
            for row in leased.before.failures:
                store.count_failure(row)
        pending = {key for key in self._parts.blocks.keys(leased.block) if not store.is_settled(key)}
        held = self._held[leased.block] = HeldBlock(leased.block, leased.generation, pending)
        self._complete_if_settled(held)
        return held

    @property
    def _lease_s(self) -> float:
        return self._parts.heartbeat.lease_s

    def _report_waiting(self, survey: Survey) -> None:
        others = (owner for token, owner in survey.owners.items() if token != self._parts.owner.token)
        names = ", ".join(sorted(map(describe, others)))
        if names and names != self._waiting_for:
            self._waiting_for = names
            left = min(survey.unfinished * self._parts.blocks.size, self._parts.blocks.expected.count)
            self._print_line(f"waiting for the last rollouts, at most {left}, of {names}")


async def _first_of(events: tuple[asyncio.Event, ...], timeout_s: float | None) -> None:
    """Wait until one of the events is set, or the time has passed."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
