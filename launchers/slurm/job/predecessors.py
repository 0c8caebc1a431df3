"""Finds out how earlier jobs of a chain ended that were killed before they could record it."""

from __future__ import annotations

import time
from pathlib import Path

from rollyard.launchers.slurm.chain.attempts import Attempt, attempts_of
from rollyard.launchers.slurm.chain.record import ChainEventKind, ChainRecord
from rollyard.launchers.slurm.client.slurm_client import SlurmClient, Standing
from rollyard.launchers.slurm.client.time_limit import seconds_of
from rollyard.launchers.slurm.job.heartbeat import Heartbeat
from rollyard.launchers.slurm.job_types import JobSpec, JobState
from rollyard.records.errors import RunError

_LIMIT_SLACK_S = 120.0
"""SLURM enforces time limits in steps of half a minute, and the last heartbeat is a little older than the end."""
_PASSING = ("COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED")
"""States that hide the final one."""
_COMPLETE_S = 180.0
"""Longer than SLURM's UnkillableStepTimeout, 60 s by default."""
_POLL_S = 0.5


def settle(client: SlurmClient, record: ChainRecord, spec: JobSpec, folder: Path, own_job: str) -> str | None:
    """Record the end of each attempt that has none. Returns the id of another job of the chain that is still alive."""
    for attempt in attempts_of(record.events()):
        if attempt.ended is not None:
            continue
        heartbeat = Heartbeat(folder, attempt.job_id, attempt.restart)
        last = heartbeat.last() or attempt.started
        if attempt.job_id == own_job:
            state, ended, reason = JobState.REQUEUED, last, "SLURM started the job again"
        else:
            standing = _when_complete(client, attempt.job_id)
            if standing is not None and standing.state.alive and standing.name not in _PASSING:
                return attempt.job_id
            known = standing.state if standing is not None and not standing.state.alive else None
            state, reason = _state(known or client.accounted(attempt.job_id), attempt, last, spec)
            ended = (standing.ended if known is not None and standing is not None else None) or last
        record.append(
            ChainEventKind.ENDED,
            attempt.job_id,
            attempt.restart,
            at=ended,
            node=attempt.node,
            state=state,
            reason=reason,
        )
        heartbeat.remove()
    return None


def _when_complete(client: SlurmClient, job_id: str) -> Standing | None:
    """Return the state of a job; None if SLURM does not know it, or does not answer.

    While processes of a job are being stopped, or after SIGSTOP, SLURM does not show its final state.
    """
    deadline = time.monotonic() + _COMPLETE_S
    try:
        while (standing := client.standing(job_id)) is not None and standing.name in _PASSING:
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
    except RunError:
        return None
    return standing


def _state(known: JobState | None, attempt: Attempt, last: float, spec: JobSpec) -> tuple[JobState, str]:
    if known is not None and known != JobState.UNKNOWN:
        return known, f"the job was ended by SLURM or killed; its state is {known}"
    limit = seconds_of(spec.time)
    if limit is not None and last - attempt.started >= limit - _LIMIT_SLACK_S > 0:
        return JobState.TIMEOUT, "SLURM no longer knows the job; it ran until its time limit"
    return JobState.UNKNOWN, "SLURM no longer knows the job, and it left no record of its end"
