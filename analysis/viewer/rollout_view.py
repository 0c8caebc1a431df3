"""Builds the view of one rollout from its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rollyard.analysis.charts.run_charts import log_probs
from rollyard.analysis.viewer.api_records import RolloutView
from rollyard.analysis.viewer.conversation import events_of
from rollyard.analysis.viewer.fields import verdict_of
from rollyard.analysis.viewer.rollout_list import Table
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.analysis.viewer.untrusted_values import as_row, row_facts
from rollyard.records.errors import RunError
from rollyard.records.replay import Replay
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import Json

Replays = Callable[[Json], Replay | None]


class RowChanged(RunError):
    """The file was changed, so the index pointed to a different row. The file is being read again."""


def rollout_view(run: RunFile, table: Table, index: int, replays: Replays) -> RolloutView:
    """Return the rollout at `index` of the run's table.

    Raises OSError if the file cannot be read, and RowChanged if the index is out of date.
    """
    line, row = table.line(index), row_of(run, table, index)
    events = events_of(row) if row else []
    chart = log_probs([log_prob for event in events if event.tokens for log_prob in event.tokens.log_probs])
    return RolloutView(
        run=run.number,
        line=line,
        events=events,
        replay=replays(dict(row)) if row else None,
        charts=[] if chart is None else [chart],
        verdict=tuple(verdict_of(row)) if row else (),
        facts=row_facts(row) if row else {},
        attempts=run.attempts.of(line.task, line.repeat),
        previous=_key(table, index - 1),
        next=_key(table, index + 1),
    )


def row_line(run: RunFile, table: Table, index: int) -> bytes:
    """Return the line of the rollout at `index`; empty if it has no row. Raises OSError or RowChanged, as
    `rollout_view` does.
    """
    line = run.line(table, index)
    if line is not None:
        _validated(run, table, index, as_row(line))
    return line or b""


def row_of(run: RunFile, table: Table, index: int) -> RolloutRow | None:
    """Return the row of the rollout at `index`, if it has one. Raises OSError or RowChanged, as `rollout_view` does."""
    line = run.line(table, index)
    return None if line is None else _validated(run, table, index, as_row(line))


def _validated(run: RunFile, table: Table, index: int, row: Json | None) -> RolloutRow:
    key = int(table.task[index]), int(table.repeat[index])
    found = None if row is None else (row.get("_ng_task_index"), row.get("_ng_rollout_index"))
    if row is None or (run.file.snapshot.has_task_index and found != key):
        run.file.invalidate()
        raise RowChanged(f"the row of task {key[0]}, repeat {key[1]} has moved because the file was changed")
    return cast(RolloutRow, row)


def _key(table: Table, index: int) -> tuple[int, int] | None:
    return (int(table.task[index]), int(table.repeat[index])) if 0 <= index < len(table) else None
