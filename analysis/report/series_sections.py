"""Builds the sections of a series of steps: curves, tasks by steps, what was learned and forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts.chart import Chart, chart
from rollyard.analysis.charts.curves.step_charts import figure_text, figure_title, step_chart
from rollyard.analysis.charts.heat_map import HeatRow, heat_map
from rollyard.analysis.charts.labels import pluralize, short
from rollyard.analysis.charts.labels import share as short_share
from rollyard.analysis.metrics.paired.metric import REWARD, SOLVE_RATE
from rollyard.analysis.metrics.paired.task_changes import TaskChange
from rollyard.analysis.metrics.training.row_numbers import LOG_PROB
from rollyard.analysis.metrics.training.series_profile import SeriesProfile, StepChanges, TaskResults
from rollyard.analysis.metrics.training.step_summary import ZERO_VARIANCE
from rollyard.analysis.metrics.training.task_series import evenly
from rollyard.analysis.report.comparison_report import chance, change, reach, value, verdict
from rollyard.analysis.report.formatting import NOTHING
from rollyard.analysis.report.section import Section, Table

_MAX_ROWS = 40
_IN_TABLE = (SOLVE_RATE, REWARD, "output_tokens", LOG_PROB, ZERO_VARIANCE)
_MAX_FIGURES = 4
_ALPHA = 0.05
_PAIRED = {
    "content": "content (_ng_task_key)",
    "prompt": "prompt and tools",
    "index": "index, because all manifests state the same input",
}


def sections(series: SeriesProfile) -> list[Section]:
    """Return the sections of a series, most important first."""
    return [_curves(series), _changed(series), _tasks(series)]


def _curves(series: SeriesProfile) -> Section:
    steps = series.steps
    text = [
        f"{pluralize(len(steps), 'step')}, from {steps[0].step:,} to {steps[-1].step:,}. Bands are 95% intervals, "
        "clustered by task.",
        *series.notes,
    ]
    charts = [
        _titled(step_chart(name, {one.step: one.figures[name] for one in steps if name in one.figures}, {}))
        for name in series.figures
    ]
    shown = [name for name in _IN_TABLE if name in series.figures][:_MAX_FIGURES]
    rows = [
        (
            f"{one.step:,}",
            one.name,
            f"{one.rollouts:,}",
            *(figure_text(name, one.figures[name]) if name in one.figures else NOTHING for name in shown),
        )
        for one in (steps[at] for at in evenly(len(steps), _MAX_ROWS))
    ]
    caption = f"{_MAX_ROWS} of {len(steps):,} steps, all in profile.json" if len(steps) > _MAX_ROWS else ""
    table = Table(("step", "file", "rollouts", *map(figure_title, shown)), rows, caption)
    return Section("Steps", text, [table], charts)


def _titled(drawn: Chart) -> Chart:
    """Return the chart with its title in its caption, because the report shows no others."""
    return drawn.model_copy(update={"caption": f"{drawn.title}: {drawn.caption}"})


def _changed(series: SeriesProfile) -> Section:
    found, steps = series.changes, series.steps
    title = f"Learned and forgotten from step {steps[0].step:,} to step {steps[-1].step:,}"
    if found.difference is None:
        return Section(title, [f"The steps cannot be compared: {found.why_not}."])
    one = found.difference
    text = [
        f"{pluralize(one.tasks, 'task')} in both, paired by {_PAIRED[found.by]}: {found.learned:,} better, "
        f"{found.forgotten:,} worse. {figure_title(found.metric)}: {change(one.metric, one.difference)}, 95% interval "
        f"{reach(one)}. " + verdict(one, _ALPHA).replace("The candidate", "The last step")
    ]
    head = ("task", f"step {steps[0].step:,}", f"step {steps[-1].step:,}", "change", "rollouts", "p of the task")
    tables = [
        Table(
            head,
            [_row(task, found) for task in tasks],
            caption if len(tasks) == total else f"{caption}: {len(tasks)} of {total:,}",
        )
        for caption, tasks, total in (
            ("Learned, largest change first", found.most_learned, found.learned),
            ("Forgotten, largest change first", found.most_forgotten, found.forgotten),
        )
        if tasks
    ]
    return Section(title, text, tables)


def _row(task: TaskChange, found: StepChanges) -> tuple[str, ...]:
    return (
        str(task.task),
        *(value(found.metric, amount) for amount in (task.first, task.second)),
        change(found.metric, task.second - task.first),
        f"{task.rollouts[0]:,} and {task.rollouts[1]:,}",
        chance(task.p),
    )


def _tasks(series: SeriesProfile) -> Section:
    if series.why_not_paired:
        return Section("Tasks by steps", [f"Tasks cannot be paired: {series.why_not_paired}."])
    text = [
        f"{pluralize(series.tasks, 'task')}, paired by {_PAIRED[series.paired_by]}. Rows are tasks, columns steps; "
        "darker cells have a higher value."
    ]
    if len(series.columns) < len(series.steps):
        text.append(f"{len(series.columns)} of {len(series.steps):,} steps are shown.")
    charts = [
        _map(series, tasks, name, title)
        for name, title, tasks in (
            ("gains", "Largest gains", series.gains),
            ("losses", "Largest losses", series.losses),
        )
        if tasks
    ]
    if not charts:
        text.append("No task has another value at the end than at the start.")
    return Section("Tasks by steps", text, charts=charts)


def _map(series: SeriesProfile, tasks: Sequence[TaskResults], name: str, title: str) -> Chart:
    is_share = series.value == SOLVE_RATE
    known = [amount for one in tasks for amount in one.values if amount is not None]
    low, high = (0.0, 1.0) if is_share else (min(known), max(known))

    def tip(task: int, step: int, amount: float) -> str:
        return f"task {task}, step {step:,}: {short_share(amount) if is_share else short(amount)}"

    rows: list[HeatRow] = [
        (
            str(one.task),
            [
                None if amount is None else ((amount - low) / (high - low or 1.0), tip(one.task, step, amount))
                for step, amount in zip(series.columns, one.values, strict=True)
            ],
        )
        for one in tasks
    ]
    span = "0% to 100%" if is_share else f"{short(low)} to {short(high)}"
    caption = f"{title}: {'solve rates' if is_share else 'mean rewards'} of {pluralize(len(tasks), 'task')}, {span}."
    columns = [f"{step:,}" for step in series.columns]
    return chart(
        f"tasks_{name}", title, heat_map(f"{caption} Rows are tasks, columns steps.", columns, rows, "task"), caption
    )
