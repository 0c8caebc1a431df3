"""Chains: what happened to the jobs that worked on the same command, and whether another one may start.

`chain.jsonl` in the job's folder has one line for each event. Jobs of a chain run one after another, so the file has
one writer at a time. A job killed while it writes leaves an incomplete last line, which readers skip and the next
writer ends. A marker file says that the work is done, or that the chain was cancelled; a heartbeat file shows until
when a job was alive.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from rollyard.launchers.slurm.job import JobSpec, JobState
from rollyard.records.errors import RunError
from rollyard.records.jsonl import append, iter_jsonl, replace, skip
from rollyard.records.terminal import duration
from rollyard.records.types import Record

CHAIN_FILE = "chain.jsonl"


class ChainEventKind(StrEnum):
    """What happened."""

    STARTED = "started"
    """A job started the command, or was about to."""
    QUEUED = "queued"
    """A job queued its successor."""
    ENDED = "ended"
    """A job ended. Written by the job itself, or by a later one if it was killed."""
    CLOSED = "closed"
    """The chain ended: no further job does any work."""
    WARNING = "warning"
    """Something failed that does not end the job."""


class ChainEvent(Record):
    """One line of chain.jsonl."""

    event: ChainEventKind
    chain: str
    job_id: str
    restart: int = 0
    """How often SLURM had put this job back into the queue when it started."""
    time: float
    """Unix time; of an end, if it is written later, the last time at which the job was known to be alive."""
    node: str | None = None
    state: JobState | None = None
    reason: str | None = None
    successor: str | None = None


class ChainRecord:
    """Reads and appends the events of one chain."""

    def __init__(self, folder: Path, chain: str) -> None:
        self._path = folder / CHAIN_FILE
        self._chain = chain

    def events(self) -> list[ChainEvent]:
        """Return the events of this chain, in order. Lines that are not events are skipped."""
        found: list[ChainEvent] = []
        try:
            for row in iter_jsonl(self._path, skip):
                try:
                    found.append(ChainEvent.model_validate(row.value))
                except ValidationError:  # written by a newer version
                    continue
        except FileNotFoundError:
            return []
        return [event for event in found if event.chain == self._chain]

    def append(
        self,
        event: ChainEventKind,
        job_id: str,
        restart: int = 0,
        *,
        at: float | None = None,
        **fields: str | None,
    ) -> None:
        """Append one event and sync it. Raises RunError if it cannot be written."""
        known = {"event": event, "chain": self._chain, "job_id": job_id, "restart": restart, "time": at or time.time()}
        written = ChainEvent.model_validate({**known, **fields})
        append(self._path, written.model_dump_json(exclude_none=True).encode() + b"\n")


class Attempt(Record):
    """One start of the command: a job of the chain, or a restart of the same job by SLURM."""

    job_id: str
    restart: int = 0
    node: str | None = None
    started: float
    ended: float | None = None
    state: JobState = JobState.RUNNING
    reason: str | None = None
    """Why it ended: the last line of its log, or what SLURM said."""

    @property
    def running_s(self) -> float:
        """Running time in seconds; 0 if it has not ended."""
        return max(0.0, self.ended - self.started) if self.ended is not None else 0.0


class ChainEnd(NamedTuple):
    """How a chain ended."""

    state: JobState
    reason: str


def attempts_of(events: Iterable[ChainEvent]) -> list[Attempt]:
    """Return the attempts in the order of their starts."""
    found: dict[tuple[str, int], Attempt] = {}
    for event in events:
        key = (event.job_id, event.restart)
        if event.event == ChainEventKind.STARTED:
            found[key] = Attempt(job_id=event.job_id, restart=event.restart, node=event.node, started=event.time)
        elif event.event == ChainEventKind.ENDED and key in found and found[key].ended is None:
            end = {"ended": event.time, "state": event.state or JobState.UNKNOWN, "reason": event.reason}
            found[key] = found[key].model_copy(update=end)
    return list(found.values())


def end_of(events: Sequence[ChainEvent]) -> ChainEnd | None:
    """Return how the chain ended; None if it continues."""
    for event in events:
        if event.event == ChainEventKind.CLOSED:
            return ChainEnd(event.state or JobState.UNKNOWN, event.reason or "")
    return None


def end_by_rule(spec: JobSpec, attempts: Sequence[Attempt]) -> ChainEnd | None:
    """Return why no further attempt may start; None if one may."""
    for attempt in attempts:
        if attempt.state == JobState.COMPLETED:
            return ChainEnd(JobState.COMPLETED, f"job {attempt.job_id} completed the work")
        if attempt.state == JobState.CANCELLED:
            return ChainEnd(JobState.CANCELLED, f"job {attempt.job_id} was cancelled")
    failed = [attempt for attempt in attempts if attempt.state.counts]
    if len(failed) > spec.max_retries:
        last = failed[-1]
        why = f"{last.state}: {last.reason}" if last.reason else str(last.state)
        jobs = "1 job" if len(failed) == 1 else f"{len(failed)} jobs"
        return ChainEnd(
            last.state, f"{jobs} failed, and max_retries is {spec.max_retries}; the last, {last.job_id}: {why}"
        )
    if spec.max_walltime_s is not None and running_time(attempts) >= spec.max_walltime_s:
        return ChainEnd(JobState.TIMEOUT, f"the chain has run for max_walltime_s, {duration(spec.max_walltime_s)}")
    if len(attempts) >= spec.max_jobs:
        return ChainEnd(JobState.FAILED, f"the command was started {len(attempts)} times, which is max_jobs")
    return None


def running_time(attempts: Iterable[Attempt]) -> float:
    """Return the seconds for which the attempts ran together."""
    return sum(attempt.running_s for attempt in attempts)


DONE = "done.json"
CANCELLED = "cancelled.json"


class Marker(Record):
    """The content of a marker."""

    chain: str
    """The chain that it concerns; a marker of an earlier chain in the same folder does not end a new one."""
    job_id: str
    time: float
    """Unix time."""


def write_marker(path: Path, marker: Marker) -> None:
    """Write a marker that survives a power failure."""
    replace(path, marker.model_dump_json().encode() + b"\n")


def read_marker(path: Path) -> Marker | None:
    """Return a marker, or None if it does not exist. Raises RunError if it is not a marker."""
    try:
        return Marker.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RunError(f"{path} is not a marker of a job: delete it, or choose another folder") from error


INTERVAL_S = 10.0
"""Of heartbeats."""


class Heartbeat:
    """The file of one start of a job. Errors are ignored, since the file only improves the account of running time."""

    def __init__(self, folder: Path, job_id: str, restart: int) -> None:
        self._path = folder / f".alive-{job_id}-{restart}"
        self._next = 0.0

    def beat(self) -> None:
        """Set the file's time, at most every INTERVAL_S."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + INTERVAL_S
        with contextlib.suppress(OSError):
            self._path.touch()
            os.utime(self._path)

    def last(self) -> float | None:
        """Return the Unix time of the last beat; None if there was none."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
