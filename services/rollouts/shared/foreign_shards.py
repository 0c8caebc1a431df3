"""ForeignShards: what other workers have measured, read only from the shards of blocks that change hands."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollyard.records.rollouts.partial_records import PARTIAL_MEMBER
from rollyard.records.rollouts.rollout_keys import Expected, Key
from rollyard.records.types import Json
from rollyard.services.rollouts.shared.rollout_lines import failure_lines, rollout_lines
from rollyard.services.rollouts.shared.shared_paths import RoundPaths


@dataclass
class ForeignRows:
    """What other workers have written since their shards were last read."""

    measured: list[Key] = field(default_factory=list)
    failures: list[Json] = field(default_factory=list)


class ForeignShards:
    """Reads other workers' shards, each line once. Not thread-safe."""

    def __init__(self, paths: RoundPaths, expected: Expected, own_token: str) -> None:
        self._paths = paths
        self._expected = expected
        self._own = own_token
        self._offsets: dict[str, tuple[int, int]] = {}

    def read(self, tokens: Iterable[str]) -> ForeignRows:
        """Return what the shards of these workers contain, and make it durable. Raises RunError or OSError."""
        found = ForeignRows()
        for token in set(tokens) - {self._own}:
            shard = self._paths.shard(token)
            rows, failures = self._offsets.get(token, (0, 0))
            for path in (shard.output, shard.failures):
                if path.exists():
                    _sync(path)  # its writer may have been killed before it synced
            for keyed in rollout_lines(shard.output, self._expected, rows):
                found.measured.append(keyed.key)
                rows = keyed.offset + len(keyed.line)
            for keyed in failure_lines(shard.failures, self._expected, failures):
                # The conversation would take up memory and is only copied from file to file.
                found.failures.append({name: value for name, value in keyed.row.items() if name != PARTIAL_MEMBER})
                failures = keyed.offset + len(keyed.line)
            self._offsets[token] = rows, failures
        return found

    def read_all(self) -> ForeignRows:
        """Return what all shards contain."""
        return self.read(self._paths.shard_tokens())


def _sync(path: os.PathLike[str]) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
