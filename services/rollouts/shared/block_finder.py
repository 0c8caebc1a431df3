"""BlockFinder: goes through the rows and leases free blocks. Its methods do blocking file I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from rollyard.services.datasets.tasks import Rollout, Tasks
from rollyard.services.rollouts.shared.blocks import Blocks
from rollyard.services.rollouts.shared.foreign_shards import ForeignRows, ForeignShards
from rollyard.services.rollouts.shared.heartbeats import HeartbeatWriter
from rollyard.services.rollouts.shared.leases import Leases, LeaseTable
from rollyard.services.rollouts.shared.owners import OwnerWatch
from rollyard.services.rollouts.shared.shard_store import ShardStore
from rollyard.services.rollouts.shared.shared_records import Owner


@dataclass(frozen=True)
class WorkerParts:
    """What a worker needs in a round."""

    owner: Owner
    blocks: Blocks
    leases: Leases
    watch: OwnerWatch
    heartbeat: HeartbeatWriter
    store: ShardStore
    foreign: ForeignShards


@dataclass(frozen=True)
class LeasedBlock:
    """A block that was leased, and what its earlier owners have written."""

    block: int
    generation: int
    before: ForeignRows | None = None
    """None if this is the block's first lease."""


@dataclass
class Survey:
    """The blocks that are not done."""

    unfinished: int = 0
    has_free: bool = False
    """Whether one of them can be leased now. The survey ends with the first."""
    owners: dict[str, Owner] = field(default_factory=dict)
    """Token -> worker that leases some of them."""


class BlockFinder:
    """Not thread-safe."""

    def __init__(self, parts: WorkerParts, tasks: Tasks, print_line: Callable[[str], None]) -> None:
        self._parts = parts
        self._tasks = tasks
        self._print_line = print_line
        self._table = LeaseTable()
        self._settled_before: set[int] = set()
        """Blocks that were finished before this round."""
        self._rows: Iterator[Rollout] = iter(())
        self._next: Rollout | None = None
        self._reported: set[str] = set()

    def start_over(self) -> None:
        """Go through the rows from the start."""
        self._rows = self._tasks.rollouts(self._parts.blocks.expected.repeats)
        self._next = None

    def next_of(self, block: int) -> Rollout | None:
        """Return the next rollout of the block, or None at its end. The rows before it are skipped."""
        while (rollout := self._peek()) is not None:
            found = self._block_of(rollout)
            if found > block:
                return None
            self._next = None
            if found == block:
                return rollout
        return None

    def next_lease(self, held: Collection[int]) -> LeasedBlock | None:
        """Go on through the rows and lease the next block that is free; return None at the end of the rows."""
        passed = -1
        while (rollout := self._peek()) is not None:
            block = self._block_of(rollout)
            if block != passed:
                passed = block
                if not self._is_done(block) and block not in held and (leased := self._lease(block)) is not None:
                    return leased
            self._next = None
        return None

    def refresh(self) -> LeaseTable:
        """Read the leases again."""
        self._table = self._parts.leases.table()
        return self._table

    def survey(self, held: Collection[int]) -> Survey:
        """Read the leases again, and return which blocks are not done and who leases them."""
        self.refresh()
        found = Survey()
        for block in range(self._parts.blocks.count):
            if self._is_done(block):
                continue
            found.unfinished += 1
            generation = self._table.generations.get(block, 0)
            if block in held:
                continue
            if not generation or self._is_free(block, generation):
                found.has_free = True
                break
            if (lease := self._parts.leases.lease(block, generation)) is not None:
                found.owners[lease.owner.token] = lease.owner
        return found

    def _peek(self) -> Rollout | None:
        if self._next is None:
            self._next = next(self._rows, None)
        return self._next

    def _block_of(self, rollout: Rollout) -> int:
        return self._parts.blocks.of((rollout.task_index, rollout.rollout_index))

    def _is_done(self, block: int) -> bool:
        if block in self._table.done or block in self._settled_before:
            return True
        if block in self._table.generations:
            return False
        if all(map(self._parts.store.is_settled, self._parts.blocks.keys(block))):
            self._settled_before.add(block)
            return True
        return False

    def _lease(self, block: int) -> LeasedBlock | None:
        """Lease the block if it is free."""
        parts = self._parts
        generation = self._table.generations.get(block, 0)
        if generation and not self._is_free(block, generation):
            return None
        if not parts.leases.claim(block, generation + 1, parts.owner):
            self.refresh()
            return None
        self._table.generations[block] = generation + 1
        if not generation:
            return LeasedBlock(block, 1)
        earlier = list(parts.leases.history(block, generation))
        self._report_taken(block, earlier[-1].owner if earlier[-1] else None)
        tokens = [lease.owner.token for lease in earlier if lease]
        unreadable = len(tokens) < len(earlier)
        return LeasedBlock(
            block, generation + 1, parts.foreign.read_all() if unreadable else parts.foreign.read(tokens)
        )

    def _is_free(self, block: int, generation: int) -> bool:
        lease = self._parts.leases.lease(block, generation)
        if lease is not None and lease.owner.token == self._parts.owner.token:
            return True  # it is not held: the block was finished, and its marker is lost
        return self._parts.watch.is_free(lease, self._parts.leases.name(block, generation))

    def _report_taken(self, block: int, owner: Owner | None) -> None:
        name = "a worker whose lease cannot be read" if owner is None else describe(owner)
        if name not in self._reported:
            self._reported.add(name)
            self._print_line(f"taking over unfinished blocks of {name}, starting with block {block}")


def describe(owner: Owner) -> str:
    """Name a worker for the user."""
    job = f", job {owner.job}" if owner.job else ""
    return f"{owner.worker} ({owner.host}, pid {owner.pid}{job})"
