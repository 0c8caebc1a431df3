"""Builds the sections that compare several runs."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts import comparison_charts
from rollyard.analysis.metrics.comparison import Change, DatasetDifference, Difference
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.analysis.report.formatting import (
    NOTHING,
    interval,
    mark_partial,
    measured,
    percent,
    points,
    reward,
    signed,
)
from rollyard.analysis.report.headline import headlines
from rollyard.analysis.report.section import Link, Section, Table
from rollyard.analysis.report.viewer_links import ViewerLinks

_LISTED = 5
"""Number of gained and lost tasks in the report; profile.json contains ten of each."""


def sections(runs: Sequence[Profile], differences: Sequence[Difference], viewer: ViewerLinks) -> list[Section]:
    """Return the comparison of each later run with the first, then the headline numbers side by side. `viewer`: what to
    link to.
    """
    compared = [_difference(found, number, viewer) for number, found in enumerate(differences, 1)]
    return [*compared, _side_by_side(runs)]


def _side_by_side(runs: Sequence[Profile]) -> Section:
    names = list(dict.fromkeys(name for run in runs for name, _, _ in headlines(run)))
    found = [{name: (value, reach) for name, value, reach in headlines(run)} for run in runs]
    rows = [("coverage", *(measured(run.coverage) for run in runs))]
    for name in names:
        cells = [numbers.get(name, (NOTHING, NOTHING)) for numbers in found]
        rows.append((name, *(mark_partial(value, run.coverage) for (value, _), run in zip(cells, runs, strict=True))))
        if any(reach != NOTHING for _, reach in cells):
            rows.append(("  95% interval", *(reach for _, reach in cells)))
    head = ("", *(run.name for run in runs))
    text = ["Each number is over its run's own tasks, with its 95% interval."]
    if any(run.coverage.missing for run in runs):
        text.append("* Not all expected rollouts are measured; see the run's bounds.")
    return Section("Side by side", text, [Table(head, rows)], comparison_charts.side_by_side(runs))


def _difference(found: Difference, number: int, viewer: ViewerLinks) -> Section:
    title = f"{found.name} against {found.baseline}"
    if not found.tasks:
        return Section(title, list(found.notes))
    rows = _rows("", found)
    for one in found.datasets:
        rows += _rows(f"{one.name or '(no dataset)'}: ", one)
    text = [*found.notes, _counted(found)]
    if found.only_baseline or found.only_here:
        text.append(
            f"Excluded: {found.only_baseline:,} tasks measured only in {found.baseline} and {found.only_here:,} "
            f"measured only in {found.name}."
        )
    if found.identity:
        text.append("Differences between the runs: " + "; ".join(found.identity) + ".")
    tables = [Table(("", "difference", "95% interval, paired", "tasks"), rows)]
    for caption, changes in (("Largest gains", found.gained), ("Largest losses", found.lost)):
        if changes:
            tables.append(_changes(caption, found, changes))
    address = viewer.comparison(0, number) if viewer else ""
    links = [Link("all tasks, side by side", address)] if address else []
    return Section(title, text, tables, comparison_charts.difference_charts(found), links=links)


def _rows(prefix: str, found: Difference | DatasetDifference) -> list[tuple[str, ...]]:
    """Return the rows for solve rate and mean reward, omitting those that cannot be compared."""
    rows: list[tuple[str, ...]] = []
    if (rate := found.solve_rate) is not None:
        rows.append(
            (f"{prefix}solve rate", f"{points(rate.mean)} points", interval(rate, "points"), f"{found.tasks:,}")
        )
    if (mean := found.reward) is not None:
        rows.append((f"{prefix}mean reward", signed(mean.mean), interval(mean, "signed"), f"{found.tasks:,}"))
    return rows


def _counted(found: Difference) -> str:
    over = "tasks" if found.sign_test_tasks == found.tasks else f"{found.sign_test_tasks:,} tasks"
    chance = "" if found.sign_test_p is None else f" (sign test over {over}: p = {found.sign_test_p:.2g})"
    return (
        f"By {found.outcome}, {found.better:,} tasks are better, {found.worse:,} worse, {found.equal:,} equal{chance}. "
        "Differences are means over the tasks of both runs, each with the same weight."
    )


def _changes(caption: str, found: Difference, changes: Sequence[Change]) -> Table:
    write = percent if found.solve_rate is not None else reward
    rows = [
        (
            str(change.task)
            if change.task == change.task_here
            else f"{change.task} ({change.task_here} in the other run)",
            write(change.before),
            write(change.after),
        )
        for change in changes[:_LISTED]
    ]
    return Table(("task", found.baseline, found.name), rows, f"{caption}, by {found.outcome}")
