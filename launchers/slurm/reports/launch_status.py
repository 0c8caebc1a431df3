"""LaunchStatus: the states of a launch's jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rollyard.launchers.slurm.job_types import JobState, SubmittedJob
from rollyard.launchers.slurm.launch.launch_folder import LaunchFolder
from rollyard.launchers.slurm.launch.launch_records import Combination, Launch, PlannedJob
from rollyard.launchers.slurm.launch.launch_text import title
from rollyard.launchers.slurm.launch.submissions import Submissions
from rollyard.launchers.slurm.reports.progress import read_progress
from rollyard.launchers.slurm.scheduler import Scheduler
from rollyard.records.types import Json, Record

NOT_SUBMITTED = "NOT SUBMITTED"


class JobRow(Record):
    title: str
    job_id: str | None
    state: str
    """A JobState, or NOT SUBMITTED."""
    attempts: int
    """How often its command was started, over all jobs of the chain."""
    error: str
    """Why the last attempt failed."""


class CombinationRow(Record):
    """One combination and its jobs."""

    name: str
    parameters: Json
    """The swept parameters."""
    measured: int | None
    expected: int | None
    is_complete: bool
    jobs: list[JobRow]

    @property
    def states(self) -> str:
        """The states of its jobs: `RUNNING`, or `RUNNING 6, FAILED 2`."""
        counts = Counter(job.state for job in self.jobs)
        return ", ".join(state if len(self.jobs) == 1 else f"{state} {count}" for state, count in counts.items())

    @property
    def rows(self) -> str:
        if self.measured is None:
            return "-"
        return f"{self.measured:,} of {'?' if self.expected is None else f'{self.expected:,}'}"

    @property
    def attempts(self) -> int:
        return sum(job.attempts for job in self.jobs)

    @property
    def error(self) -> str:
        return next((job.error for job in reversed(self.jobs) if job.error), "")


class LaunchStatus(Record):
    launch_id: str
    folder: Path
    conversion: list[JobRow]
    combinations: list[CombinationRow]

    @property
    def summary(self) -> str:
        """One line: `24 combinations: 20 complete; jobs: COMPLETED 20, RUNNING 3, FAILED 1`."""
        jobs = [*self.conversion, *(job for one in self.combinations for job in one.jobs)]
        states = ", ".join(f"{state} {count}" for state, count in Counter(job.state for job in jobs).most_common())
        complete = sum(one.is_complete for one in self.combinations)
        return f"{len(self.combinations)} combinations, {complete} complete; jobs: {states}"


def launch_status(launch: Launch, scheduler: Scheduler) -> LaunchStatus:
    """Ask SLURM and read the files of the launch. Raises RunError if SLURM does not answer."""
    submitted = Submissions(LaunchFolder(launch.folder).submitted).jobs
    states = scheduler.states(list(submitted.values())) if submitted else {}

    def rows(jobs: list[PlannedJob]) -> list[JobRow]:
        return [_job_row(launch, job, submitted, states, scheduler) for job in jobs]

    return LaunchStatus(
        launch_id=launch.launch_id,
        folder=launch.folder,
        conversion=rows(launch.jobs_of(None)),
        combinations=[_combination_row(one, rows(launch.jobs_of(one.name))) for one in launch.combinations],
    )


def swept(combination: Combination) -> Json:
    return {key: combination.parameters[key] for key in combination.swept}


def _combination_row(combination: Combination, jobs: list[JobRow]) -> CombinationRow:
    progress = read_progress(combination)
    return CombinationRow(
        name=combination.name,
        parameters=swept(combination),
        measured=progress.measured,
        expected=progress.expected,
        is_complete=progress.is_complete,
        jobs=jobs,
    )


def _job_row(
    launch: Launch,
    job: PlannedJob,
    submitted: Mapping[str, SubmittedJob],
    states: Mapping[str, JobState],
    scheduler: Scheduler,
) -> JobRow:
    known = submitted.get(job.spec.name)
    found = [] if known is None else scheduler.attempts(known)
    failed = [attempt for attempt in found if attempt.state.counts]
    state = NOT_SUBMITTED if known is None else str(states.get(known.job_id, JobState.UNKNOWN))
    error = f"{failed[-1].state}: {failed[-1].reason or 'unknown reason'}" if failed else ""
    if not found and state == JobState.UNKNOWN:
        error = "SLURM no longer knows it, and it ended before it could record anything"
    return JobRow(
        title=title(launch, job),
        job_id=None if known is None else known.job_id,
        state=state,
        attempts=len(found),
        error=error,
    )
