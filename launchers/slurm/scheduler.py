"""Scheduler: runs each job as a chain of SLURM jobs, each submitted exactly once, even if sbatch's answer is lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from rollyard.launchers.slurm.client import QueuedJob, SlurmClient, SlurmError, SlurmTimeoutError, array_base
from rollyard.launchers.slurm.job import (
    JOB_FILE,
    SCRIPT,
    ChainJob,
    JobSpec,
    JobState,
    Submission,
    SubmittedJob,
    check_spec,
    comment,
    read_submission,
    sbatch_arguments,
    script,
    write_job,
    write_submission,
)
from rollyard.launchers.slurm.nodes import check_container
from rollyard.records.errors import RunError
from rollyard.records.jsonl import append, iter_jsonl, replace, skip
from rollyard.records.types import Record


class SubmissionPreview(Record):
    argv: tuple[str, ...]
    files: dict[Path, str]
    """Contents of the files that are written before the submission, by path."""


@dataclass
class Scheduler:
    client: SlurmClient

    def preview(self, spec: JobSpec) -> SubmissionPreview:
        spec = _checked(spec)
        chain = "<id of the chain>"
        job = f"{ChainJob(chain=chain, spec=spec).model_dump_json(indent=2)}\n"
        return SubmissionPreview(
            argv=("sbatch", "--parsable", *sbatch_arguments(spec, chain, 1, _after(spec))),
            files={spec.folder / JOB_FILE: job, spec.folder / SCRIPT: script(spec.folder)},
        )

    def submit(self, spec: JobSpec) -> str:
        """Submit the first job of a chain and return its id.

        A folder keeps the job that was submitted for it before, unless that chain has ended without completing its
        work. Raises OperatorError for an invalid job, RunError if SLURM refuses it or cannot be reached.
        """
        spec = _checked(spec)
        before = read_submission(spec.folder)
        if before is not None and (found := self._submitted(spec.folder, before)):
            return found
        chain = before.chain if before is not None and before.job_id is None else secrets.token_hex(8)
        submission = Submission(chain=chain, name=spec.name, submitted=time.time())
        write_job(spec, chain)
        write_submission(spec.folder, submission)
        job_id = submit_once(self.client, spec, chain, 1, _after(spec))
        write_submission(spec.folder, submission.model_copy(update={"job_id": job_id}))
        return job_id

    def _submitted(self, folder: Path, submission: Submission) -> str | None:
        """Return the id of the folder's job if it was submitted, and is alive or done."""
        if submission.job_id is None:
            # The launcher was killed between sbatch and its answer; the job may have run already.
            events = ChainRecord(folder, submission.chain).events()
            job_id = _find_job(self.client, submission.chain, 1) or (events[0].job_id if events else None)
            if job_id is None:
                return None
            submission = submission.model_copy(update={"job_id": job_id})
            write_submission(folder, submission)
        assert submission.job_id is not None
        listed = jobs_of(self.client, [submission.chain])[submission.chain]
        state = self._state(folder, submission.chain, submission.job_id, listed)
        return submission.job_id if state.alive or state == JobState.COMPLETED else None

    def states(self, jobs: Sequence[SubmittedJob]) -> dict[str, JobState]:
        """Return the state of each chain by the id of its first job."""
        chains = {job.job_id: _chain_of(job) for job in jobs}
        # Chains that are done are not queried, so that the states of a complete launch need no SLURM.
        states = {job.job_id: _recorded_end(job.folder, chains[job.job_id]) for job in jobs}
        open_jobs = [job for job in jobs if states[job.job_id] is None]
        listed = jobs_of(self.client, [chains[job.job_id] for job in open_jobs]) if open_jobs else {}
        for job in open_jobs:
            chain = chains[job.job_id]
            states[job.job_id] = self._state(job.folder, chain, job.job_id, listed[chain])
        return {job_id: state for job_id, state in states.items() if state is not None}

    def _state(self, folder: Path, chain: str, first: str, listed: Sequence[QueuedJob]) -> JobState:
        if recorded := _recorded_end(folder, chain):
            return recorded
        if alive := [job.state for job in listed if job.state.alive]:
            return JobState.RUNNING if JobState.RUNNING in alive else JobState.PENDING
        events = ChainRecord(folder, chain).events()
        attempts = attempts_of(events)
        # A job may have ended without a record: before its runner started, or killed as the last of its chain.
        queued = [event.successor for event in events if event.successor]
        newest = queued[-1] if queued else listed[-1].job_id if listed else attempts[-1].job_id if attempts else first
        ended = self.ending(newest)
        if attempts and (ended is None or newest != attempts[-1].job_id):
            last = attempts[-1]
            if last.ended is not None:
                return last.state
            ended = self.ending(last.job_id)
        return ended or JobState.UNKNOWN

    def ending(self, job_id: str) -> JobState | None:
        return self.client.ending(array_base(job_id)) or self.client.accounted(job_id)

    def attempts(self, job: SubmittedJob) -> list[JobAttempt]:
        """Return every start of the job's command, with the state and reason of each end.

        SLURM is asked how a job ended if it was killed and no later job has recorded its end.
        """
        found = attempts_of(ChainRecord(job.folder, _chain_of(job)).events())
        return [self._settled(attempt) if attempt.ended is None else attempt for attempt in found]

    def _settled(self, attempt: JobAttempt) -> JobAttempt:
        standing = self.client.standing(attempt.job_id)
        if standing is not None and standing.state.alive:
            if standing.restarts == attempt.restart:
                return attempt
            return attempt.model_copy(update={"state": JobState.REQUEUED, "reason": "SLURM put it back into the queue"})
        state = self.ending(attempt.job_id) or JobState.UNKNOWN
        ended = standing.ended if standing is not None else None
        reason = f"it was killed; SLURM's state is {state}" if state != JobState.UNKNOWN else "SLURM no longer knows it"
        return attempt.model_copy(update={"state": state, "ended": ended, "reason": reason})

    def cancel(self, jobs: Sequence[SubmittedJob]) -> None:
        """Cancel chains. The marker stops a successor that a job queues at this moment."""
        chains = [_chain_of(job) for job in jobs]
        for job, chain in zip(jobs, chains, strict=True):
            write_marker(job.folder / CANCELLED, chain, job.job_id)
        # Successors first, so that none of them starts when its predecessor ends.
        for state in (JobState.PENDING, JobState.RUNNING):
            listed = jobs_of(self.client, chains)
            self.client.cancel([one.job_id for found in listed.values() for one in found if one.state == state])
        left = [one for found in jobs_of(self.client, chains).values() for one in found]
        self.client.cancel([one.job_id for one in left if one.state == JobState.PENDING])


def _checked(spec: JobSpec) -> JobSpec:
    here = Path.cwd()
    directory = here if spec.working_directory is None else here / spec.working_directory
    spec = spec.model_copy(update={"folder": spec.folder.absolute(), "working_directory": directory})
    check_spec(spec)
    check_container(spec)
    return spec


def _after(spec: JobSpec) -> list[str]:
    return [f"afterok:{':'.join(spec.after_ok)}"] if spec.after_ok else []


def _chain_of(job: SubmittedJob) -> str:
    submission = read_submission(job.folder)
    if submission is None:
        raise RunError(f"{job.folder} has no record of job {job.job_id}; was the folder moved or deleted?")
    return submission.chain


def _recorded_end(folder: Path, chain: str) -> JobState | None:
    if read_marker(folder / DONE, chain):
        return JobState.COMPLETED
    events = ChainRecord(folder, chain).events()
    if end := end_of(events):
        return end.state
    running = any(attempt.ended is None for attempt in attempts_of(events))
    return JobState.CANCELLED if read_marker(folder / CANCELLED, chain) and not running else None


_LOOKUPS = 3
_PAUSE_S = 1.0


def submit_once(client: SlurmClient, spec: JobSpec, chain: str, position: int, dependencies: Sequence[str] = ()) -> str:
    """Submit the job at a position of a chain and return its id.

    If sbatch does not answer, the job may have been submitted: it is looked up by its comment before another attempt.
    Raises SlurmTimeoutError if SLURM does not answer the second time either, SlurmError if it refuses the job.
    """
    arguments = sbatch_arguments(spec, chain, position, dependencies)
    try:
        return client.sbatch(arguments)
    except SlurmTimeoutError as error:
        try:
            for _ in range(_LOOKUPS):
                if found := _find_job(client, chain, position):
                    return found
                time.sleep(_PAUSE_S)
        except SlurmError as second:
            raise SlurmTimeoutError(
                f"{error}. Whether job {spec.name!r} was submitted is unknown, because {second}. Repeat the command "
                f"when SLURM answers: before it submits again, it looks for the comment {comment(chain, position)}"
            ) from error
    return client.sbatch(arguments)


def _find_job(client: SlurmClient, chain: str, position: int) -> str | None:
    """Return the id of the job at a position of a chain, if squeue still lists it: waiting, running or just ended."""
    wanted = comment(chain, position)
    ids = [array_base(job.job_id) for job in client.queue() if job.comment == wanted]
    return min(ids, key=int, default=None)


def jobs_of(client: SlurmClient, chains: Sequence[str]) -> dict[str, list[QueuedJob]]:
    listed = sorted(client.queue(), key=lambda job: int(array_base(job.job_id)))
    return {chain: [job for job in listed if job.comment.startswith(comment(chain))] for chain in chains}


CHAIN_FILE = "chain.jsonl"


class ChainEventKind(StrEnum):
    STARTED = "started"
    """A job started the command, or was about to."""
    QUEUED = "queued"
    ENDED = "ended"
    """A job ended. Written by the job itself, or by a later one if it was killed."""
    CLOSED = "closed"
    """The chain ended: no further job does any work."""
    WARNING = "warning"


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
    def __init__(self, folder: Path, chain: str) -> None:
        self._path = folder / CHAIN_FILE
        self._chain = chain

    def events(self) -> list[ChainEvent]:
        """Return the events of this chain, in order. Lines that are not events are skipped."""
        found: list[ChainEvent] = []
        with suppress(FileNotFoundError):
            for row in iter_jsonl(self._path, skip):
                with suppress(ValidationError):  # written by a newer version
                    found.append(ChainEvent.model_validate(row.value))
        return [event for event in found if event.chain == self._chain]

    def append(
        self, event: ChainEventKind, job_id: str, restart: int = 0, *, at: float | None = None, **fields: str | None
    ) -> None:
        known = {"event": event, "chain": self._chain, "job_id": job_id, "restart": restart, "time": at or time.time()}
        written = ChainEvent.model_validate({**known, **fields})
        append(self._path, written.model_dump_json(exclude_none=True).encode() + b"\n")


class JobAttempt(Record):
    """One start of the command: a job of the chain, or a restart of the same job by SLURM."""

    job_id: str
    restart: int = 0
    node: str | None = None
    started: float
    ended: float | None = None
    state: JobState = JobState.RUNNING
    reason: str | None = None


class ChainEnd(NamedTuple):
    state: JobState
    reason: str


def attempts_of(events: Iterable[ChainEvent]) -> list[JobAttempt]:
    found: dict[tuple[str, int], JobAttempt] = {}
    for event in events:
        key = (event.job_id, event.restart)
        if event.event == ChainEventKind.STARTED:
            found[key] = JobAttempt(job_id=event.job_id, restart=event.restart, node=event.node, started=event.time)
        elif event.event == ChainEventKind.ENDED and key in found and found[key].ended is None:
            end = {"ended": event.time, "state": event.state or JobState.UNKNOWN, "reason": event.reason}
            found[key] = found[key].model_copy(update=end)
    return list(found.values())


def end_of(events: Sequence[ChainEvent]) -> ChainEnd | None:
    closed = next((event for event in events if event.event == ChainEventKind.CLOSED), None)
    return None if closed is None else ChainEnd(closed.state or JobState.UNKNOWN, closed.reason or "")


def end_by_rule(spec: JobSpec, attempts: Sequence[JobAttempt]) -> ChainEnd | None:
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
        reason = f"{jobs} failed, and max_retries is {spec.max_retries}; the last, {last.job_id}: {why}"
        return ChainEnd(last.state, reason)
    if len(attempts) >= spec.max_jobs:
        return ChainEnd(JobState.FAILED, f"the command was started {len(attempts)} times, which is max_jobs")
    return None


DONE = "done.json"
CANCELLED = "cancelled.json"


class Marker(Record):
    chain: str
    job_id: str
    time: float


def write_marker(path: Path, chain: str, job_id: str) -> None:
    """Write a marker that survives a power failure."""
    replace(path, Marker(chain=chain, job_id=job_id, time=time.time()).model_dump_json().encode() + b"\n")


def read_marker(path: Path, chain: str) -> Marker | None:
    """Return the marker of a chain; that of an earlier chain in the same folder does not end a new one."""
    try:
        found = Marker.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RunError(f"{path} is not a marker of a job: delete it, or choose another folder") from error
    return found if found.chain == chain else None
