"""Leases: which worker may collect which block.

Lease `12.3` is the third lease on block 12. Its file is created exclusively and never changed or removed. A worker
takes over a block by creating the lease of the next generation, which succeeds for exactly one worker; the former owner
notices the new file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson
from pydantic import ValidationError

from rollyard.services.rollouts.shared.exclusive_files import create_exclusive
from rollyard.services.rollouts.shared.shared_paths import RoundPaths
from rollyard.services.rollouts.shared.shared_records import Lease, Owner

_DONE = "done"


@dataclass
class LeaseTable:
    """The leases of a round at one time."""

    generations: dict[int, int] = field(default_factory=dict)
    """Block -> generation of its latest lease."""
    done: set[int] = field(default_factory=set)
    """Blocks whose rollouts are all measured or permanently failed, and on disk."""


class Leases:
    """The leases of one round, as seen and created by one worker. Its methods raise OSError."""

    def __init__(self, paths: RoundPaths) -> None:
        self._folder = paths.leases
        self._read: dict[tuple[int, int], Lease] = {}

    def table(self) -> LeaseTable:
        """Return the current leases."""
        table = LeaseTable()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                block, _, generation = entry.name.partition(".")
                if not block.isdigit():
                    continue
                if generation == _DONE:
                    table.done.add(int(block))
                elif generation.isdigit():
                    known = table.generations.get(int(block), 0)
                    table.generations[int(block)] = max(known, int(generation))
        return table

    def claim(self, block: int, generation: int, owner: Owner) -> bool:
        """Lease the block with this generation; return False if another worker has done so."""
        lease = Lease(block=block, generation=generation, owner=owner)
        return create_exclusive(self._folder / self.name(block, generation), orjson.dumps(lease.model_dump()))

    def mark_done(self, block: int) -> None:
        """Record that the block is finished. All its rollouts must be on disk."""
        create_exclusive(self._folder / f"{block}.{_DONE}", b"")

    def lease(self, block: int, generation: int) -> Lease | None:
        """Return a lease, or None if its file is incomplete: a host crashed while it was written."""
        found = self._read.get((block, generation))
        if found is None:
            try:
                found = Lease.model_validate_json((self._folder / self.name(block, generation)).read_bytes())
            except (ValidationError, FileNotFoundError):
                return None
            self._read[block, generation] = found
        return found

    def history(self, block: int, generation: int) -> Iterator[Lease | None]:
        """Yield the leases of a block, from the first up to `generation`."""
        return (self.lease(block, number) for number in range(1, generation + 1))

    @staticmethod
    def name(block: int, generation: int) -> str:
        return f"{block}.{generation}"
