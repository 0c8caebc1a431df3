"""SeriesProfile: the figures of several files as the steps of one training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.analysis.metrics.paired.metric import REWARD, SOLVE_RATE
from rollyard.analysis.metrics.paired.records import PairedDifference
from rollyard.analysis.metrics.paired.task_changes import TaskChange, TaskChanges
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.training.step_summary import StepSummary, drawn_names
from rollyard.analysis.metrics.training.task_series import TaskSeries, ends, evenly
from rollyard.records.types import Record

MAX_COLUMNS = 40
MAX_TASKS = 30
"""Maximum number of tasks with the largest gains, and of those with the largest losses."""


@dataclass(frozen=True)
class SummarizedStep:
    """A file of the series."""

    step: int
    name: str
    path: str
    summary: StepSummary | None
    """None if the file has no measured rollout."""


class StepFigures(Record):
    """A step and its figures, with their intervals."""

    step: int
    name: str
    path: str
    rollouts: int
    """Number of measured rollouts."""
    figures: dict[str, Estimate]


class TaskResults(Record):
    """A task's results at the steps of `SeriesProfile.columns`."""

    task: int
    """Index of the task in the first step that has it."""
    values: list[float | None]
    change: float
    """The last known value minus the first."""


class StepChanges(Record):
    """What changed between the first and the last step, task by task."""

    why_not: str
    """Why the steps cannot be compared; empty if they can."""
    by: str
    """How tasks were paired: by `content`, `prompt` or `index`."""
    metric: str
    """`solve_rate` or `reward`."""
    difference: PairedDifference | None
    learned: int
    """Number of tasks with a higher value at the last step."""
    forgotten: int
    most_learned: list[TaskChange]
    most_forgotten: list[TaskChange]


class SeriesProfile(Record):
    """Files as the steps of a training run, in ascending order."""

    steps: list[StepFigures]
    figures: list[str]
    """The names of the figures that are worth a curve, most important first."""
    columns: list[int]
    """The steps for which the results of tasks are given: all, or 40 evenly spaced ones."""
    value: str
    """What the results of tasks are: `solve_rate` or `reward`."""
    paired_by: str
    why_not_paired: str
    tasks: int
    """Number of tasks in any of these steps."""
    gains: list[TaskResults]
    """The tasks with the largest gains, largest first."""
    losses: list[TaskResults]
    changes: StepChanges
    notes: list[str]


def series_profile(steps: Sequence[SummarizedStep], first: Run, last: Run, notes: Sequence[str] = ()) -> SeriesProfile:
    """Return the profile of steps in ascending order. `first` and `last`: the runs of the first and the last step."""
    summaries = {one.step: one.summary for one in steps if one.summary is not None}
    known = sorted(summaries)
    columns = [known[at] for at in evenly(len(known), MAX_COLUMNS)]
    series = TaskSeries.of([summaries[step] for step in columns])
    values = series.solve_rate if series.has_solved else series.mean
    before, after = ends(values)
    change = after - before

    def results(sign: float) -> list[TaskResults]:
        order = np.lexsort((series.label, -sign * change))
        chosen = [row for row in order.tolist() if sign * change[row] > 0][:MAX_TASKS]
        return [
            TaskResults(
                task=int(series.label[row]),
                values=[None if np.isnan(value) else float(value) for value in values[row]],
                change=float(change[row]),
            )
            for row in chosen
        ]

    return SeriesProfile(
        steps=[
            StepFigures(
                step=one.step,
                name=displayable(one.name),
                path=one.path,
                rollouts=one.summary.rollouts if one.summary else 0,
                figures=one.summary.figures if one.summary else {},
            )
            for one in steps
        ],
        figures=drawn_names(summaries),
        columns=columns,
        value=SOLVE_RATE if series.has_solved else REWARD,
        paired_by=series.by,
        why_not_paired=series.why_not,
        tasks=len(series),
        gains=results(1.0),
        losses=results(-1.0),
        changes=_changes(first, last),
        notes=[*notes, *dict.fromkeys(one.why_no_reward for one in summaries.values() if one.why_no_reward)],
    )


def _changes(first: Run, last: Run) -> StepChanges:
    found = TaskChanges.of(first, last)
    learned, forgotten = found.listed("learned"), found.listed("forgotten")
    return StepChanges(
        why_not=found.why_not,
        by=found.by,
        metric=found.metric,
        difference=found.difference,
        learned=len(learned),
        forgotten=len(forgotten),
        most_learned=[found.at(index) for index in learned[:MAX_TASKS].tolist()],
        most_forgotten=[found.at(index) for index in forgotten[:MAX_TASKS].tolist()],
    )
