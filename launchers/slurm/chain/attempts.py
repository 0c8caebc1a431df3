"""Attempts: what became of each start of a chain's command, and whether the chain continues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollyard.launchers.slurm.chain.record import ChainEvent, ChainEventKind
from rollyard.launchers.slurm.job_types import JobSpec, JobState
from rollyard.records.io.durations import duration
from rollyard.records.types import Record


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
