"""Submitter: submits the jobs of a launch, each exactly once, even after interruptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rollyard.launchers.slurm.launch.launch_folder import LaunchFolder
from rollyard.launchers.slurm.launch.launch_records import Launch, PlannedJob
from rollyard.launchers.slurm.launch.submissions import Submissions
from rollyard.launchers.slurm.scheduler import Scheduler
from rollyard.records.errors import OperatorError, RunError


@dataclass(frozen=True)
class Outcome:
    """What became of one planned job."""

    job: PlannedJob
    job_id: str | None
    """None if it could not be submitted."""
    before: bool = False
    """It was submitted by an earlier call."""
    problem: str = ""


@dataclass(frozen=True)
class Submitter:
    scheduler: Scheduler
    report: Callable[[Outcome], None] = lambda _: None
    """Called after each job."""
    completed: frozenset[str] = frozenset()
    """Names of jobs that have succeeded: nothing needs to wait for them, and SLURM may no longer know them."""

    def settle(self, launch: Launch, submissions: Submissions) -> None:
        """Find out the ids of jobs whose submission was interrupted; submits those that SLURM does not have.

        Raises RunError if that fails.
        """
        for job in launch.jobs:
            if job.spec.name in submissions.intents:
                self._submit(job, submissions)

    def submit(self, launch: Launch) -> list[Outcome]:
        """Submit all jobs that SLURM does not have yet, up to the first that it refuses. The caller holds the lock."""
        submissions = Submissions(LaunchFolder(launch.folder).submitted)
        outcomes = []
        for outcome in self._submit_all(launch, submissions):
            outcomes.append(outcome)
            self.report(outcome)
            if outcome.job_id is None:
                break  # the next jobs would be refused for the same reason: a limit, a partition, a dead controller
        return outcomes

    def _submit_all(self, launch: Launch, submissions: Submissions) -> Iterator[Outcome]:
        for job in launch.jobs:
            known = submissions.jobs.get(job.spec.name)
            if known is not None:
                yield Outcome(job, known.job_id, before=True)
                continue
            try:
                yield Outcome(job, self._submit(job, submissions))
            except (OperatorError, RunError, OSError) as error:
                yield Outcome(job, None, problem=str(error))

    def _submit(self, job: PlannedJob, submissions: Submissions) -> str:
        """Submit a job. After an interrupted submission, the scheduler finds the job by its folder."""
        after = tuple(submissions.jobs[name].job_id for name in job.after if name not in self.completed)
        spec = job.spec.model_copy(update={"after_ok": after})
        submissions.announce(spec.name)
        job_id = self.scheduler.submit(spec)
        submissions.record(spec.name, job_id, spec.folder)
        return job_id
