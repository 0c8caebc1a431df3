"""Builds the list of a run's failed attempts, and the view of one of them."""

from __future__ import annotations

import numpy as np

from rollyard.analysis.charts.log_probs import log_probs
from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.analysis.viewer.api.rollout_view import Replays
from rollyard.analysis.viewer.api.row_fields import row_facts
from rollyard.analysis.viewer.attempts.attempt_records import AttemptLine, AttemptPage, AttemptView, Sequel
from rollyard.analysis.viewer.attempts.partial_events import (
    UNKNOWN,
    events_until_failure,
    missing_note,
    turn_times,
)
from rollyard.analysis.viewer.index.failed_attempts import Failed, attempt_of
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.records.io.json_values import mapping

_NOT_RECORDED = UNKNOWN.format(
    why="it was not recorded. Reasons: an older version, --max-partial-bytes 0, an agent of another framework, or an "
    "agent that died before its first model call"
)


def attempt_page(
    run: RunFile, start: int, limit: int, kind: str | None, only: tuple[Ints, Ints] | None = None
) -> AttemptPage:
    """Return failed attempts, latest first. `only`: the tasks and repeats of the rollouts to list.

    Raises OSError if the file cannot be read.
    """
    failed = run.attempts.failed
    counts = np.bincount(failed.kind.codes, minlength=len(failed.kind.names)).tolist()
    kinds = {name: count for name, count in zip(failed.kind.names, counts, strict=True) if count}
    mask = np.ones(len(failed.task), bool)
    if kind is not None:
        codes = [code for code, name in enumerate(failed.kind.names) if name == kind]
        mask &= np.isin(failed.kind.codes, codes)
    if only is not None:
        wanted = set(zip(only[0].tolist(), only[1].tolist(), strict=True))
        mask &= np.array(
            [key in wanted for key in zip(failed.task.tolist(), failed.repeat.tolist(), strict=True)], bool
        )
    indexes = np.flatnonzero(mask)[::-1]
    lines = [_line(run, failed, index) for index in indexes[start : start + limit].tolist()]
    return AttemptPage(total=len(indexes), start=start, lines=lines, kinds=kinds)


def attempt_view(run: RunFile, task: int, repeat: int, at: int, replays: Replays) -> AttemptView | None:
    """Return the failed attempt number `at` at a rollout; None if there is none. Raises OSError."""
    failed = run.attempts.failed
    indexes = np.flatnonzero((failed.task == task) & (failed.repeat == repeat)).tolist()
    if not 0 <= at < len(indexes):
        return None
    row = run.attempts.row(int(failed.offset[indexes[at]]))
    line = AttemptLine(**attempt_of(row).model_dump(), task=task, repeat=repeat, at=at)
    partial = mapping(row.get("partial"))
    played = mapping(partial.get("row"))
    index = run.table.find(task, repeat)
    events = events_until_failure(partial, line) if played else []
    chart = log_probs([log_prob for event in events if event.tokens for log_prob in event.tokens.log_probs])
    return AttemptView(
        run=run.number,
        line=line,
        events=events,
        charts=[] if chart is None else [chart],
        replay=replays(dict(played)) if played else None,
        turns=turn_times(partial),
        note=missing_note(partial) if played else _NOT_RECORDED,
        facts=row_facts(played),
        others=len(indexes),
        measured=index is not None and bool(run.table.measured[index]),
    )


def sequel(run: RunFile, task: int, repeat: int) -> Sequel:
    """Return what has become of a rollout in the part of the file read so far."""
    failed, table = run.attempts.failed, run.table
    index = table.find(task, repeat)
    return Sequel(
        measured=index is not None and bool(table.measured[index]),
        attempts=int(((failed.task == task) & (failed.repeat == repeat)).sum()),
    )


def _line(run: RunFile, failed: Failed, index: int) -> AttemptLine:
    task, repeat = int(failed.task[index]), int(failed.repeat[index])
    before = (failed.task[:index] == task) & (failed.repeat[:index] == repeat)
    row = run.attempts.row(int(failed.offset[index]))
    return AttemptLine(**attempt_of(row).model_dump(), task=task, repeat=repeat, at=int(before.sum()))
