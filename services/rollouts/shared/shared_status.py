"""The status of an output that several workers collect: what is merged, and what is still in their shards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rollyard.records.rollouts.status_file import read_status
from rollyard.records.types import CollectionStatus
from rollyard.services.rollouts.shared.shared_paths import SharedPaths


def unmerged_statuses(output: Path) -> list[CollectionStatus]:
    """Return the status of each worker of the current round; none if the round is merged."""
    current = SharedPaths(output).latest_round()
    if current is None or current.merged.exists():
        return []
    found = (read_status(current.shard(token).output) for token in current.shard_tokens())
    return [status for status in found if status is not None]


def shared_status(output: Path) -> CollectionStatus | None:
    """Return the status over all workers; None if nothing was collected.

    It has the state of the worker that has written last. A rollout that two workers have measured counts twice.
    """
    merged, shards = read_status(output), unmerged_statuses(output)
    if not shards:
        return merged
    parts = shards if merged is None else [merged, *shards]
    last = max(shards, key=lambda status: status.updated)
    running = [status for status in shards if status.state == "running"]
    expected = max(status.expected for status in parts)
    failures: Counter[str] = Counter()
    for status in parts:
        failures.update(status.failures)
    return last.model_copy(
        update={
            "expected": expected,
            "measured": min(sum(status.measured for status in parts), expected),
            "failed": max(status.failed for status in parts),
            "failed_attempts": sum(status.failed_attempts for status in parts),
            "in_flight": sum(status.in_flight for status in running),
            "rollouts_per_s": sum(status.rollouts_per_s for status in running),
            "mean_reward": _mean_reward(parts),
            "successes": _successes(parts),
            "reward_stderr": None,
            "success_stderr": None,
            "datasets": {},
            "failures": dict(failures),
        }
    )


def _mean_reward(parts: list[CollectionStatus]) -> float | None:
    scored = [status for status in parts if status.measured]
    means = [status.mean_reward for status in scored]
    if not scored or None in means:
        return None
    total = sum(status.measured * (status.mean_reward or 0.0) for status in scored)
    return total / sum(status.measured for status in scored)


def _successes(parts: list[CollectionStatus]) -> int | None:
    counts = [status.successes for status in parts if status.measured]
    return None if None in counts else sum(count or 0 for count in counts)
