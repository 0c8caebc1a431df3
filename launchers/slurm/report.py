"""What `status` and `collect` show of a launch: the progress of its jobs, and a table of its results."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

from rollyard.launchers.evaluation.eval_state import EvalFolder
from rollyard.launchers.evaluation.headline import (
    Headline,
    formatted,
    headline,
    markdown_table,
    metric_columns,
    metric_names,
    metric_numbers,
)
from rollyard.launchers.slurm.job import JobState
from rollyard.launchers.slurm.launch import Combination, PlannedJob, SlurmLaunch, submitted_jobs
from rollyard.launchers.slurm.scheduler import Scheduler
from rollyard.launchers.slurm.sweep import shown_value
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import read_status
from rollyard.records.types import Json, Record
from rollyard.services.rollouts.shards import merge, shard_files, shard_progress

NOT_SUBMITTED = "NOT SUBMITTED"


class Progress(Record):
    measured: int | None = None
    """Rollouts with a reward; None if the collection has not begun."""
    expected: int | None = None
    is_complete: bool = False
    """Every rollout is measured and in one file."""


def read_progress(combination: Combination) -> Progress:
    output = EvalFolder(combination.run).rollouts.output
    merged = read_status(output)
    if merged is not None and merged.expected and merged.measured == merged.expected:
        return Progress(measured=merged.measured, expected=merged.expected, is_complete=True)
    if (found := shard_progress(output)) is not None:
        return Progress(measured=found[0], expected=found[1])
    return Progress() if merged is None else Progress(measured=merged.measured, expected=merged.expected)


class JobRow(Record):
    title: str
    job_id: str | None
    state: str
    attempts: int
    error: str


class CombinationRow(Record):
    name: str
    parameters: Json
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


def launch_status(launch: SlurmLaunch, scheduler: Scheduler) -> LaunchStatus:
    """Ask SLURM and read the files of the launch. Raises RunError if SLURM does not answer."""
    submitted = submitted_jobs(launch)
    states = scheduler.states(list(submitted.values()))

    def row(job: PlannedJob) -> JobRow:
        known = submitted.get(job.spec.name)
        found = [] if known is None else scheduler.attempts(known)
        failed = [attempt for attempt in found if attempt.state.counts]
        state = NOT_SUBMITTED if known is None else str(states.get(known.job_id, JobState.UNKNOWN))
        error = f"{failed[-1].state}: {failed[-1].reason or 'unknown reason'}" if failed else ""
        if not found and state == JobState.UNKNOWN:
            error = "SLURM no longer knows it, and it ended before it could record anything"
        job_id = None if known is None else known.job_id
        return JobRow(title=launch.title(job), job_id=job_id, state=state, attempts=len(found), error=error)

    combinations = []
    for one in launch.combinations:
        jobs, counts = [row(job) for job in launch.jobs_of(one.name)], read_progress(one).model_dump()
        combinations.append(CombinationRow(name=one.name, parameters=one.swept_values, jobs=jobs, **counts))
    conversion = [row(job) for job in launch.jobs_of(None)]
    return LaunchStatus(
        launch_id=launch.launch_id, folder=launch.folder, conversion=conversion, combinations=combinations
    )


class SweepRow(Record):
    name: str
    parameters: Json
    headline: Headline
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        return self.headline.is_complete

    @property
    def coverage(self) -> str:
        if self.problem or self.is_complete:
            return self.problem or self.headline.coverage
        return f"{self.headline.coverage} (incomplete)"


class SweepTable(Record):
    launch_id: str
    rows: list[SweepRow]

    @property
    def parameters(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.rows for key in row.parameters))

    @property
    def metrics(self) -> list[str]:
        return metric_names(row.headline for row in self.rows)

    @property
    def incomplete(self) -> list[SweepRow]:
        return [row for row in self.rows if not row.is_complete]

    @property
    def titles(self) -> list[str]:
        return ["name", *self.parameters, "rollouts", *self.metrics]

    def cells(self, row: SweepRow) -> list[str]:
        """Return a row's cells as text, with 95% intervals."""
        return [
            row.name,
            *(shown_value(row.parameters[key]) if key in row.parameters else "-" for key in self.parameters),
            row.coverage,
            *(formatted(row.headline.metrics.get(name)) for name in self.metrics),
        ]

    @property
    def summary(self) -> str:
        missing = self.incomplete
        if not missing:
            return f"{len(self.rows)} of {len(self.rows)} combinations are complete."
        names = ", ".join(row.name for row in missing[:5]) + (", ..." if len(missing) > 5 else "")
        return f"{len(missing)} of {len(self.rows)} combinations are incomplete: {names}"


def sweep_table(launch: SlurmLaunch, pass_threshold: float | None = None) -> SweepTable:
    rows = []
    for combination in launch.combinations:
        problem, found = "", Headline(measured=0, expected=None, metrics={})
        output = EvalFolder(combination.run).rollouts.output
        try:
            if shard_files(output):
                merge(output)
            found = headline(output, pass_threshold=pass_threshold)
        except (OperatorError, RunError, OSError) as error:
            problem = str(error)
        swept = combination.swept_values
        rows.append(SweepRow(name=combination.name, parameters=swept, headline=found, problem=problem))
    return SweepTable(launch_id=launch.launch_id, rows=rows)


def write_table(table: SweepTable, folder: Path) -> list[Path]:
    heading = f"# Launch {table.launch_id}\n\n{table.summary} Intervals are 95%, clustered by task.\n\n"
    contents = {
        "results.md": heading + markdown_table([table.titles, *(table.cells(row) for row in table.rows)]),
        "results.csv": _csv(table),
        "results.json": table.model_dump_json(indent=2) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create {folder}: {error.strerror}") from error
    for name, text in contents.items():
        replace(folder / name, text.encode())
    return [folder / name for name in contents]


def _csv(table: SweepTable) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    columns = ["name", *table.parameters, "complete", "measured", "expected", *metric_columns(table.metrics)]
    writer.writerow(columns)
    for row in table.rows:
        found, complete = row.headline, str(row.is_complete).lower()
        parameters = [shown_value(row.parameters[key]) if key in row.parameters else "" for key in table.parameters]
        numbers = [complete, found.measured, found.expected, *metric_numbers(found, table.metrics)]
        writer.writerow([row.name, *parameters, *numbers])
    return stream.getvalue()
