"""The progress of all workers of an output, for status commands. Reading it does not affect the workers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rollyard.records.rollouts.status_file import read_status
from rollyard.records.types import Record
from rollyard.services.rollouts.shared.exclusive_files import unique_sibling
from rollyard.services.rollouts.shared.leases import Leases
from rollyard.services.rollouts.shared.owners import has_exited
from rollyard.services.rollouts.shared.shared_paths import RoundPaths, SharedPaths
from rollyard.services.rollouts.shared.shared_records import Heartbeat, Owner, SharedManifest


class WorkerProgress(Record):
    """One process that takes or took part in the round."""

    owner: Owner
    state: Literal["running", "silent", "ended"]
    """`silent`: no heartbeat for a whole lease. Its unfinished blocks will be, or were, taken over."""
    silent_s: float
    """Age of its heartbeat in seconds, by the clock of the file server."""
    measured: int
    failed_attempts: int
    leased: int
    """Number of unfinished blocks that it has leased."""


class SharedProgress(Record):
    """The current round of an output that several workers collect."""

    round: int
    merged: bool
    blocks: int
    done: int
    leased: int
    """Number of unfinished blocks that a running worker has leased."""
    expired: int
    """Number of unfinished blocks whose owner is silent or has ended."""
    workers: list[WorkerProgress]


def shared_progress(output: Path) -> SharedProgress | None:
    """Return the progress of the workers of `output`, or None if no worker has begun.

    Raises OSError if the folder cannot be read.
    """
    shared = SharedPaths(output)
    paths = shared.latest_round()
    if paths is None or not paths.shards.is_dir():  # the last folder of a round that is created
        return None
    leases = Leases(paths)
    table = leases.table()
    held: dict[str, int] = {}
    blocks = _blocks(shared)
    unfinished = {
        block: number for block, number in table.generations.items() if block not in table.done and block < blocks
    }
    for block, generation in unfinished.items():
        if (lease := leases.lease(block, generation)) is not None:
            held[lease.owner.token] = held.get(lease.owner.token, 0) + 1
    now = _server_time(paths)
    workers = [
        found for token in paths.shard_tokens() if (found := _worker(paths, token, held.get(token, 0), now)) is not None
    ]
    running = sum(worker.leased for worker in workers if worker.state == "running")
    return SharedProgress(
        round=paths.number,
        merged=paths.merged.exists(),
        blocks=blocks,
        done=len(table.done),
        leased=running,
        expired=len(unfinished) - running,
        workers=workers,
    )


def measured_elsewhere(paths: RoundPaths, own_token: str) -> int:
    """Return how many rollouts the other workers of the round have measured, from their status files."""
    statuses = [read_status(paths.shard(token).output) for token in paths.shard_tokens() if token != own_token]
    return sum(status.measured for status in statuses if status)


def _worker(paths: RoundPaths, token: str, leased: int, now: float) -> WorkerProgress | None:
    path = paths.workers / f"{token}.json"
    try:
        beat = Heartbeat.model_validate_json(path.read_bytes())
        silent_s = max(0.0, now - path.stat().st_mtime)
    except (OSError, ValidationError):
        return None
    status = read_status(paths.shard(token).output)
    silent = silent_s > beat.lease_s or has_exited(beat.owner)
    return WorkerProgress(
        owner=beat.owner,
        state="ended" if beat.ended else "silent" if silent else "running",
        silent_s=round(silent_s, 1),
        measured=status.measured if status else 0,
        failed_attempts=status.failed_attempts if status else 0,
        leased=0 if beat.ended else leased,
    )


def _blocks(shared: SharedPaths) -> int:
    try:
        manifest = SharedManifest.model_validate_json(shared.manifest.read_bytes())
    except (OSError, ValidationError):
        return 0
    identity = manifest.collection.identity
    rollouts = int(identity.get("rows", 0)) * int(identity.get("num_repeats", 0))
    return -(-rollouts // manifest.block)


def _server_time(paths: RoundPaths) -> float:
    """Return the time of a file that is written now, because the clocks of hosts and file server differ."""
    probe = unique_sibling(paths.workers / "clock")
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return paths.workers.stat().st_mtime
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
