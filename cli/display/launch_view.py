"""Renders the jobs and the results of a launch as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollyard.launchers.slurm.launch.launch_text import shown_value
from rollyard.launchers.slurm.reports.launch_status import LaunchStatus
from rollyard.launchers.slurm.reports.sweep_table import SweepTable
from rollyard.records.io.terminal import plain_line

_MAX_VALUE = 40
_MAX_ERROR = 100


def status_view(status: LaunchStatus) -> RenderableType:
    """Render one row for each combination, with the states of its jobs."""
    keys = list(dict.fromkeys(key for one in status.combinations for key in one.parameters))
    rows: list[list[str]] = []
    for job in status.conversion:
        rows.append([job.title, *[""] * len(keys), job.state, job.job_id or "", "", str(job.attempts), job.error])
    for one in status.combinations:
        values = [shown_value(one.parameters[key]) if key in one.parameters else "-" for key in keys]
        ids = ", ".join(job.job_id for job in one.jobs if job.job_id)
        rows.append([one.name, *values, one.states, ids, one.rows, str(one.attempts), one.error])
    titles = ["name", *short_names(keys), "state", "jobs", "rows", "attempts", "last error"]
    return Group(
        Text(plain_line(f"Launch {status.launch_id}: {status.folder}")),
        _table(titles, rows),
        Text(plain_line(status.summary)),
    )


def table_view(table: SweepTable) -> RenderableType:
    """Render one row for each combination, with coverage and metrics."""
    titles = ["name", *short_names(table.parameters), "rollouts", *table.metrics]
    return _table(titles, [table.cells(row) for row in table.rows])


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the last parts of dotted keys, or the whole keys if these parts are not unique."""
    last = [key.rpartition(".")[2] for key in keys]
    return last if len(set(last)) == len(last) else list(keys)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(Text(plain_line(title)), no_wrap=True)
    for row in rows:
        # Text instead of str, because a value may contain brackets, which rich parses as markup.
        table.add_row(*(Text(_shorten(plain_line(cell), title)) for cell, title in zip(row, titles, strict=True)))
    return table


def _shorten(text: str, title: str) -> str:
    limit = _MAX_ERROR if title == "last error" else max(_MAX_VALUE, 2 * len(title))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
