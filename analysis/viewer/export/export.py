"""Exports selected rollouts and all metrics as one HTML file that needs no server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from rollyard.analysis.viewer.api.api_records import Overview, RolloutView
from rollyard.analysis.viewer.api.comparison_view import RunDifferences
from rollyard.analysis.viewer.api.profile_view import numbers_of
from rollyard.analysis.viewer.api.rollout_list import Indexes, Listing, Query
from rollyard.analysis.viewer.api.rollout_view import Replays, rollout_view
from rollyard.analysis.viewer.attempts.attempt_view import attempt_view
from rollyard.analysis.viewer.export.export_view import ExportView
from rollyard.analysis.viewer.export.single_file_page import single_page
from rollyard.analysis.viewer.fields.file_fields import Cells, Heads
from rollyard.analysis.viewer.findings.finding_index import examined_now
from rollyard.analysis.viewer.findings.finding_routes import FindingsView, view_of
from rollyard.analysis.viewer.index.library import FileIndex
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.analysis.viewer.index.table import Table
from rollyard.analysis.viewer.notes.agreement_view import agreement_view
from rollyard.analysis.viewer.notes.notes_view import READ_ONLY_FILE, notes_view
from rollyard.analysis.viewer.tokens.decoded_rollout import decoded_rollout
from rollyard.analysis.viewer.tokens.decoder import TokenDecoder
from rollyard.analysis.viewer.tokens.exported_tokens import exported_tokens
from rollyard.records.errors import OperatorError
from rollyard.records.expressions.parse import ExpressionError
from rollyard.records.types import Json, Record

MAX_EXPORTED = 200
_MAX_TASKS = 5000
"""Maximum number of tasks in the comparison."""


def export(
    file_index: FileIndex,
    replays: Replays,
    limit: int = MAX_EXPORTED,
    view: ExportView | None = None,
    decoder: TokenDecoder | None = None,
) -> bytes:
    """Return the page with up to `limit` rollouts of each file. The index must be complete.

    `view`: the columns and the order of the list, and which rollouts to export; the first ones in its order.

    Raises OSError if a file cannot be read, RowChanged if a file has changed, and OperatorError if the view is invalid.
    """
    view = view or ExportView(Query())
    data: Json = {
        "overview": _overview(file_index),
        "profiles": {},
        "findings": {},
        "notes": {},
        "tokens": {},
        "pages": {},
        "stories": {},
        "attempts": {},
        "comparison": None,
        "view": view.address,
    }
    notes = []
    for run in file_index.runs:
        data["profiles"][str(run.number)] = numbers_of(run)
        listing, table = run.listing, run.listing.table
        data["notes"][str(run.number)] = notes_view(run.notes, "", "", READ_ONLY_FILE)
        data["notes"][f"{run.number}/agreement"] = agreement_view(run)
        found = view_of(examined_now(run))
        data["findings"][str(run.number)] = found
        selected = view.indexes(run)
        in_order = view.is_filtered or bool(view.address)
        indexes = selected[:limit] if in_order else chosen(table, limit, _examples(table, found))
        columns, cells = _cells(run, listing, indexes, view.columns)
        page = listing.page_of(indexes, len(indexes))
        data["pages"][str(run.number)] = page.model_copy(update={"columns": columns, "cells": cells})
        for index in indexes.tolist():
            shown = decoded_rollout(rollout_view(run, table, index, replays), decoder)
            data["stories"][f"{run.number}/{shown.line.task}/{shown.line.repeat}"] = shown
            data["attempts"] |= _attempts(run, shown, replays)
        exported = {(int(table.task[index]), int(table.repeat[index])) for index in indexes}
        data["tokens"][str(run.number)] = exported_tokens(run, exported, decoder)
        notes.append(_omission_note(run.name, len(indexes), len(table), len(selected), view))
    if len(file_index.runs) > 1:
        compared = RunDifferences(file_index.find).of(0, 1)
        data["comparison"] = compared.page((0, 1), "task", 0, _MAX_TASKS)
        notes += _omitted_tasks_note(len(compared.tasks[0]))
    return single_page(orjson.dumps(data, default=_as_dict), " ".join(filter(None, notes)))


def _overview(file_index: FileIndex) -> Overview:
    """Return the overview without the locations of the files on this host."""
    overview = file_index.overview()
    return overview.model_copy(update={"runs": [run.model_copy(update={"absolute_path": ""}) for run in overview.runs]})


def _attempts(run: RunFile, view: RolloutView, replays: Replays) -> Json:
    """Return the failed attempts at an exported rollout, by address."""
    line = view.line
    return {
        f"{run.number}/{line.task}/{line.repeat}/{at}": attempt_view(run, line.task, line.repeat, at, replays)
        for at in range(len(view.attempts))
    }


def _examples(table: Table, view: FindingsView) -> Indexes:
    """Return the rollouts to which findings link."""
    found = (table.find(example.task, example.repeat) for one in view.findings for example in one.examples)
    return np.array([index for index in found if index is not None], np.intp)


def chosen(table: Table, limit: int, examples: Indexes | None = None) -> Indexes:
    """Select representative rollouts and return their indexes in ascending order.

    A quarter of them are the best, a quarter are the worst, up to a quarter have failed, and up to a quarter are
    `examples`. The rest are evenly spaced. The best and the worst are spread across tasks.
    """
    if len(table) <= limit:
        return np.arange(len(table))
    measured = np.flatnonzero(table.measured)
    failed = np.flatnonzero(~table.measured)
    quarter = limit // 4
    best = _by_task(table, measured[np.argsort(-table.reward[measured], kind="stable")])
    worst = _by_task(table, measured[np.argsort(table.reward[measured], kind="stable")])
    wanted = np.empty(0, np.intp) if examples is None else examples
    found = np.unique(np.concatenate([best[:quarter], worst[:quarter], failed[:quarter], wanted[:quarter]]))
    rest = np.setdiff1d(np.arange(len(table)), found)
    between = rest[np.linspace(0, len(rest) - 1, limit - len(found)).astype(np.intp)]
    return np.union1d(found, between)


def _by_task(table: Table, indexes: Indexes) -> Indexes:
    """Reorder the indexes round-robin: the first one of every task, then the second of every task, and so on."""
    tasks = table.task[indexes]
    order = np.argsort(tasks, kind="stable")
    starts = np.flatnonzero(np.diff(tasks[order], prepend=-1))
    ranks = np.empty(len(indexes), np.intp)
    ranks[order] = np.arange(len(indexes)) - np.repeat(starts, np.diff(starts, append=len(indexes)))
    return indexes[np.argsort(ranks, kind="stable")]


def _cells(run: RunFile, listing: Listing, indexes: Indexes, names: str) -> tuple[Heads, Cells]:
    try:
        return run.cells(listing, indexes, names)
    except ExpressionError as error:
        raise OperatorError(f"view: {error}") from error


def _omission_note(name: str, kept: int, total: int, selected: int, view: ExportView) -> str:
    if kept == total:
        return ""
    if view.is_filtered or view.address:
        first = "" if kept == selected else f"the first {kept:,} of "
        which = f"{first}{selected:,} rollouts of {name}" + (f" with {view.condition}" if view.is_filtered else "")
        return f"This page contains {which}; the metrics cover all {total:,}."
    return (
        f"This page contains {kept:,} of {total:,} rollouts of {name} (best, worst, failed, and some in between); "
        "the metrics cover all of them."
    )


def _omitted_tasks_note(tasks: int) -> Sequence[str]:
    return [f"The comparison contains the first {_MAX_TASKS:,} of {tasks:,} tasks."] if tasks > _MAX_TASKS else []


def _as_dict(record: object) -> object:
    assert isinstance(record, Record)
    return record.model_dump()
