"""Removes the rollouts of shards once they are in the output, so that they are not stored twice."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from rollyard.services.rollouts.shared.owners import has_exited
from rollyard.services.rollouts.shared.shared_paths import RoundPaths
from rollyard.services.rollouts.shared.shared_records import Heartbeat, MergeResult


def sizes_of(paths: RoundPaths, tokens: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the sizes of each shard's rollouts and failures. Take them before the shards are read."""
    return {token: (_size(paths.shard(token).output), _size(paths.shard(token).failures)) for token in tokens}


def remove_merged_shards(paths: RoundPaths, output: Path) -> None:
    """Remove the rollouts and failures of workers that have ended, if the merge has read all of them.

    Their manifests and status files stay. Rows that a worker wrote after the merge stay, too. It may be called at any
    time and by several processes at once.
    """
    with suppress(OSError, ValidationError):
        result = MergeResult.model_validate_json(paths.merged.read_bytes())
        if _size(output) < result.output_bytes:
            return  # truncated since then: the shards are the only copy
        present = sizes_of(paths, result.shard_sizes)
        for token, merged in result.shard_sizes.items():
            if present[token] == merged and _has_ended(paths, token):
                shard = paths.shard(token)
                shard.output.unlink(missing_ok=True)
                shard.failures.unlink(missing_ok=True)


def _has_ended(paths: RoundPaths, token: str) -> bool:
    """Return whether the process can no longer write to its shard. False if it cannot be known."""
    try:
        beat = Heartbeat.model_validate_json((paths.workers / f"{token}.json").read_bytes())
    except (OSError, ValidationError):
        return False
    return beat.ended or has_exited(beat.owner)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
