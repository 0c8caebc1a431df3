"""Chooses, for every rollout, the row of the output among those that the workers have measured.

The choice never depends on the rows themselves, so that no answer is preferred for being faster or better: rows of the
output before the round win, then those of the worker that leased the rollout's block first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.io.lines import line_at
from rollyard.records.rollouts.rollout_keys import KeySet
from rollyard.services.rollouts.appender import REPAIR_HINT
from rollyard.services.rollouts.shared.blocks import Blocks
from rollyard.services.rollouts.shared.leases import Leases
from rollyard.services.rollouts.shared.rollout_lines import rollout_lines

UNLEASED = 1 << 30
"""Generation of rows whose lease cannot be read. They are used only if there are no others."""


@dataclass(frozen=True)
class Shard:
    """A worker's rollouts, and when it leased its blocks."""

    token: str
    path: Path
    generations: dict[int, int]
    """Block -> generation of the worker's first lease on it. No two workers have the same."""


def shards_of(tokens: Sequence[str], paths: Sequence[Path], leases: Leases) -> list[Shard]:
    """Return the shards of a round with their leases. Raises OSError."""
    generations: dict[str, dict[int, int]] = {token: {} for token in tokens}
    for block, latest in leases.table().generations.items():
        for generation, lease in enumerate(leases.history(block, latest), 1):
            if lease is not None:
                generations.setdefault(lease.owner.token, {}).setdefault(block, generation)
    return [Shard(token, path, generations[token]) for token, path in zip(tokens, paths, strict=True)]


class ShardChoice:
    """The chosen row of every rollout. It keeps 20 bytes per rollout in memory."""

    def __init__(self, base: Path, shards: Sequence[Shard], blocks: Blocks) -> None:
        """Read all files. Raises RunError if a row is not one of the collection, or `base` repeats one."""
        self._base = base
        self._shards = shards
        self._blocks = blocks
        self.in_base = KeySet()
        for keyed in rollout_lines(base, blocks.expected):
            if not self.in_base.add(keyed.key):
                raise RunError(f"{base} repeats task {keyed.key[0]}, repeat {keyed.key[1]}. {REPAIR_HINT}")
        count = blocks.expected.count
        self._shard = array("i", [-1]) * count
        self._generation = array("q", [0]) * count
        self._offset = array("q", [0]) * count
        self._rejected: list[tuple[int, int, int]] = []
        """(position, shard, offset) of rows that were not chosen."""
        for number, shard in enumerate(shards):
            self._read(number, shard)

    def lines(self) -> Iterator[bytes]:
        """Yield the rows that are not in the base file, in the order of the input."""
        for index, number in enumerate(self._shard):
            if number >= 0 and self._blocks.key(index) not in self.in_base:
                yield line_at(self._shards[number].path, self._offset[index])

    def superseded(self) -> Iterator[bytes]:
        """Yield the rows that were not chosen and differ from those that were."""
        in_base: dict[int, list[bytes]] = {}
        for index, number, offset in sorted(self._rejected):
            line = line_at(self._shards[number].path, offset)
            if self._blocks.key(index) in self.in_base:
                in_base.setdefault(index, []).append(line)
            elif line != line_at(self._shards[self._shard[index]].path, self._offset[index]):
                yield line
        yield from self._differing_from_base(in_base)

    def _differing_from_base(self, lines: dict[int, list[bytes]]) -> Iterator[bytes]:
        """Yield those of `lines` that are not in the base file.

        After a crash during a merge, the base file already contains the chosen rows.
        """
        for keyed in rollout_lines(self._base, self._blocks.expected) if lines else ():
            index = self._blocks.index(keyed.key)
            yield from (line for line in lines.pop(index, ()) if line != keyed.line)

    def _read(self, number: int, shard: Shard) -> None:
        for keyed in rollout_lines(shard.path, self._blocks.expected):
            index = self._blocks.index(keyed.key)
            generation = shard.generations.get(self._blocks.of(keyed.key), UNLEASED)
            chosen = self._shard[index]
            if keyed.key in self.in_base:
                self._rejected.append((index, number, keyed.offset))
            elif chosen < 0 or generation < self._generation[index]:
                if chosen >= 0:
                    self._rejected.append((index, chosen, self._offset[index]))
                self._shard[index], self._generation[index] = number, generation
                self._offset[index] = keyed.offset
            else:
                self._rejected.append((index, number, keyed.offset))
