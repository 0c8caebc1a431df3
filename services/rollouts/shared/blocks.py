"""Blocks: the consecutive rollouts that a worker leases at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollyard.records.rollouts.rollout_keys import Expected, Key


def block_size(expected: int) -> int:
    """Return the number of rollouts in a block.

    Small collections are divided into about 256 blocks, so that many workers have something to do; large ones into
    about 1,024, so that the number of files does not grow with the number of rows.
    """
    return max(1, expected // 256) if expected < 1024 else max(4, expected // 1024)


@dataclass(frozen=True)
class Blocks:
    """Divides the expected rollouts, in the order of the input, into blocks of `size`."""

    expected: Expected
    size: int

    @property
    def count(self) -> int:
        return -(-self.expected.count // self.size)

    def of(self, key: Key) -> int:
        """Return the block that contains the rollout."""
        return self.index(key) // self.size

    def index(self, key: Key) -> int:
        """Return the position of the rollout in the collection."""
        return key[0] * self.expected.repeats + key[1]

    def key(self, index: int) -> Key:
        return divmod(index, self.expected.repeats)

    def keys(self, block: int) -> Iterator[Key]:
        """Yield the rollouts of a block."""
        for index in range(block * self.size, min((block + 1) * self.size, self.expected.count)):
            yield self.key(index)
