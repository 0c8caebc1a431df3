"""Scheduler: what launches need of SLURM. `slurm_scheduler.py` implements it with SLURM's commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rollyard.launchers.slurm.chain.attempts import Attempt
from rollyard.launchers.slurm.job_types import JobSpec, JobState, SubmittedJob
from rollyard.records.types import Record


class SubmissionPreview(Record):
    """What submitting a job would run and write."""

    argv: tuple[str, ...]
    """The command `sbatch` and its arguments."""
    files: dict[Path, str]
    """Contents of the files that are written before the submission, by path."""


class Scheduler(Protocol):
    """Submits, follows and cancels jobs."""

    def submit(self, spec: JobSpec) -> str:
        """Submit a job and return its id.

        A folder keeps the job that was submitted for it before, unless that chain has ended without completing its
        work. Raises OperatorError for an invalid job, RunError if SLURM refuses it or cannot be reached.
        """
        ...

    def preview(self, spec: JobSpec) -> SubmissionPreview:
        """Return what `submit` would run and write. Changes nothing."""
        ...

    def states(self, jobs: Sequence[SubmittedJob]) -> dict[str, JobState]:
        """Return the state of each chain of jobs, by the id of its first job."""
        ...

    def attempts(self, job: SubmittedJob) -> list[Attempt]:
        """Return every start of a job's command, with the state and reason of each end."""
        ...

    def cancel(self, jobs: Sequence[SubmittedJob]) -> None:
        """Cancel jobs and their successors. Jobs that have ended are ignored."""
        ...
