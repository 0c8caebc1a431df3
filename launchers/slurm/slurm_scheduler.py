"""SlurmScheduler: runs each job as a chain of SLURM jobs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from rollyard.launchers.slurm.chain.attempts import Attempt, attempts_of, end_of
from rollyard.launchers.slurm.chain.markers import CANCELLED, DONE, Marker, read_marker, write_marker
from rollyard.launchers.slurm.chain.record import ChainRecord
from rollyard.launchers.slurm.client.slurm_client import QueuedJob, SlurmClient, array_base
from rollyard.launchers.slurm.client.submitter import find_job, jobs_of, submit_once
from rollyard.launchers.slurm.job.containers import check_container
from rollyard.launchers.slurm.job_files import (
    JOB_FILE,
    SCRIPT,
    ChainJob,
    Submission,
    check_spec,
    read_submission,
    sbatch_arguments,
    script,
    write_job,
    write_submission,
)
from rollyard.launchers.slurm.job_types import JobSpec, JobState, SubmittedJob
from rollyard.launchers.slurm.scheduler import SubmissionPreview
from rollyard.records.errors import RunError


class SlurmScheduler:
    """Submits, follows and cancels chains of SLURM jobs. Implements `Scheduler`."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client

    def preview(self, spec: JobSpec) -> SubmissionPreview:
        """Return what `submit` would run and write. Changes nothing."""
        spec = _checked(spec)
        chain = "<id of the chain>"
        argv = ("sbatch", "--parsable", *sbatch_arguments(spec, chain, 1, _after(spec)))
        job = ChainJob(chain=chain, spec=spec)
        return SubmissionPreview(
            argv=argv,
            files={
                spec.folder / JOB_FILE: f"{job.model_dump_json(indent=2)}\n",
                spec.folder / SCRIPT: script(spec.folder),
            },
        )

    def submit(self, spec: JobSpec) -> str:
        """Submit the first job of a chain and return its id."""
        spec = _checked(spec)
        before = read_submission(spec.folder)
        if before is not None and (found := self._submitted(spec.folder, before)):
            return found
        chain = before.chain if before is not None and before.job_id is None else secrets.token_hex(8)
        submission = Submission(chain=chain, name=spec.name, submitted=time.time())
        write_job(spec, chain)
        write_submission(spec.folder, submission)
        job_id = submit_once(self._client, spec, chain, 1, _after(spec))
        write_submission(spec.folder, submission.model_copy(update={"job_id": job_id}))
        return job_id

    def _submitted(self, folder: Path, submission: Submission) -> str | None:
        """Return the id of the folder's job if it was submitted, and is alive or done."""
        if submission.job_id is None:
            # The launcher was killed between sbatch and its answer; the job may have run already.
            events = ChainRecord(folder, submission.chain).events()
            job_id = find_job(self._client, submission.chain, 1) or (events[0].job_id if events else None)
            if job_id is None:
                return None
            submission = submission.model_copy(update={"job_id": job_id})
            write_submission(folder, submission)
        assert submission.job_id is not None
        listed = jobs_of(self._client, [submission.chain])[submission.chain]
        state = self._state(folder, submission.chain, submission.job_id, listed)
        return submission.job_id if state.alive or state == JobState.COMPLETED else None

    def states(self, jobs: Sequence[SubmittedJob]) -> dict[str, JobState]:
        """Return the state of each chain by the id of its first job."""
        chains = {job.job_id: _chain_of(job) for job in jobs}
        # Chains that are done are not queried, so that the states of a complete launch need no SLURM.
        over = {job.job_id: _recorded_end(job.folder, chains[job.job_id]) for job in jobs}
        open_jobs = [job for job in jobs if over[job.job_id] is None]
        listed = jobs_of(self._client, [chains[job.job_id] for job in open_jobs]) if open_jobs else {}
        return {
            job.job_id: over[job.job_id]
            or self._state(job.folder, chains[job.job_id], job.job_id, listed[chains[job.job_id]])
            for job in jobs
        }

    def _state(self, folder: Path, chain: str, first: str, listed: Sequence[QueuedJob]) -> JobState:
        if recorded := _recorded_end(folder, chain):
            return recorded
        alive = [job.state for job in listed if job.state.alive]
        if JobState.RUNNING in alive:
            return JobState.RUNNING
        if alive:
            return JobState.PENDING
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
        """Return how one job of a chain ended; None if SLURM no longer knows."""
        return self._client.ending(array_base(job_id)) or self._client.accounted(job_id)

    def attempts(self, job: SubmittedJob) -> list[Attempt]:
        """Return every start of the job's command, with the state and reason of each end.

        SLURM is asked how a job ended if it was killed and no later job has recorded its end.
        """
        found = attempts_of(ChainRecord(job.folder, _chain_of(job)).events())
        return [self._settled(attempt) if attempt.ended is None else attempt for attempt in found]

    def _settled(self, attempt: Attempt) -> Attempt:
        standing = self._client.standing(attempt.job_id)
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
            write_marker(job.folder / CANCELLED, Marker(chain=chain, job_id=job.job_id, time=time.time()))
        # Successors first, so that none of them starts when its predecessor ends.
        for state in (JobState.PENDING, JobState.RUNNING):
            listed = jobs_of(self._client, chains)
            self._client.cancel([one.job_id for found in listed.values() for one in found if one.state == state])
        left = [one for found in jobs_of(self._client, chains).values() for one in found]
        self._client.cancel([one.job_id for one in left if one.state == JobState.PENDING])


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
    done = read_marker(folder / DONE)
    if done is not None and done.chain == chain:
        return JobState.COMPLETED
    events = ChainRecord(folder, chain).events()
    if end := end_of(events):
        return end.state
    cancelled = read_marker(folder / CANCELLED)
    running = any(attempt.ended is None for attempt in attempts_of(events))
    if cancelled is not None and cancelled.chain == chain and not running:
        return JobState.CANCELLED
    return None
