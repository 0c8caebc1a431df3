"""SharedPaths and RoundPaths: the names of the files with which several workers collect one output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.io.rollout_paths import RolloutPaths

_ROUND = re.compile(r"round-(\d{4,})")


@dataclass(frozen=True)
class RoundPaths:
    """The folder of one round: everything that workers write until their shards are merged into the output."""

    number: int
    folder: Path

    @property
    def leases(self) -> Path:
        """`12.1`: the first lease on block 12; `12.done`: the block is finished."""
        return self.folder / "leases"

    @property
    def workers(self) -> Path:
        """A file per worker, which it renews as its heartbeat."""
        return self.folder / "workers"

    @property
    def shards(self) -> Path:
        """The rollouts of each worker, with the usual sidecar files."""
        return self.folder / "shards"

    @property
    def superseded(self) -> Path:
        """Rollouts of the shards that are not in the output, because another shard has the same rollout."""
        return self.folder / "superseded.jsonl"

    @property
    def merged(self) -> Path:
        """The result of the merge; its existence ends the round."""
        return self.folder / "merged.json"

    def create(self) -> None:
        """Create the folders. Several workers may do so at once."""
        for folder in (self.leases, self.workers, self.shards):
            folder.mkdir(parents=True, exist_ok=True)

    def shard(self, token: str) -> RolloutPaths:
        return RolloutPaths(self.shards / f"{token}.jsonl")

    def shard_tokens(self) -> list[str]:
        """Return the tokens of all workers that have a shard, sorted."""
        manifests = self.shards.glob("*_manifest.json")
        return sorted(path.name.removesuffix("_manifest.json") for path in manifests)


@dataclass(frozen=True)
class SharedPaths:
    """The folder `X_shared` next to an output `X.jsonl`."""

    output: Path

    @property
    def folder(self) -> Path:
        return RolloutPaths(self.output).sidecar("shared")

    @property
    def manifest(self) -> Path:
        """What all workers must agree on; written once."""
        return self.folder / "manifest.json"

    def round(self, number: int) -> RoundPaths:
        return RoundPaths(number, self.folder / f"round-{number:04d}")

    def latest_round(self) -> RoundPaths | None:
        """Return the round that was begun last, or None if there is none."""
        if not self.folder.is_dir():
            return None
        found = [int(match[1]) for path in self.folder.iterdir() if (match := _ROUND.fullmatch(path.name))]
        return self.round(max(found)) if found else None
