"""Exports selected rollouts and all metrics as one HTML file that needs no server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from rollyard.services.types import Json, Record
from rollyard.services.viewer.api.comparison_view import RunDifferences
from rollyard.services.viewer.api.profile_view import numbers_of
from rollyard.services.viewer.api.rollout_list import Indexes
from rollyard.services.viewer.api.rollout_view import Replays, rollout_view
from rollyard.services.viewer.export.single_file_page import single_page
from rollyard.services.viewer.index.library import FileIndex
from rollyard.services.viewer.index.table import Table

MAX_EXPORTED = 200
_MAX_TASKS = 5000
"""Maximum number of tasks in the comparison."""


def export(file_index: FileIndex, replays: Replays, limit: int = MAX_EXPORTED) -> bytes:
    """Return the page with up to `limit` rollouts of each file. The index must be complete.

    Raises OSError if a file cannot be read, and RowChanged if a file has changed.
    """
    data: Json = {"overview": file_index.overview(), "profiles": {}, "pages": {}, "stories": {}, "comparison": None}
    notes = []
    for run in file_index.runs:
        data["profiles"][str(run.number)] = numbers_of(run)
        listing, table = run.listing, run.listing.table
        indexes = chosen(table, limit)
        data["pages"][str(run.number)] = listing.page_of(indexes, len(indexes))
        for index in indexes.tolist():
            view = rollout_view(run, table, index, replays)
            data["stories"][f"{run.number}/{view.line.task}/{view.line.repeat}"] = view
        notes.append(_omission_note(run.name, len(indexes), len(table)))
    if len(file_index.runs) > 1:
        compared = RunDifferences(file_index.find).of(0, 1)
        data["comparison"] = compared.page((0, 1), "task", 0, _MAX_TASKS)
        notes += _omitted_tasks_note(len(compared.tasks[0]))
    return single_page(orjson.dumps(data, default=_as_dict), " ".join(filter(None, notes)))


def chosen(table: Table, limit: int) -> Indexes:
    """Select representative rollouts and return their indexes in ascending order.

    A quarter of them are the best, a quarter are the worst, and up to a quarter have failed. The rest are evenly
    spaced. The best and the worst are spread across tasks.
    """
    if len(table) <= limit:
        return np.arange(len(table))
    measured = np.flatnonzero(table.measured)
    failed = np.flatnonzero(~table.measured)
    quarter = limit // 4
    best = _by_task(table, measured[np.argsort(-table.reward[measured], kind="stable")])
    worst = _by_task(table, measured[np.argsort(table.reward[measured], kind="stable")])
    found = np.unique(np.concatenate([best[:quarter], worst[:quarter], failed[:quarter]]))
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


def _omission_note(name: str, kept: int, total: int) -> str:
    if kept == total:
        return ""
    return (
        f"This page contains {kept:,} of {total:,} rollouts of {name} (best, worst, failed, and some in between); "
        "the metrics cover all of them."
    )


def _omitted_tasks_note(tasks: int) -> Sequence[str]:
    return [f"The comparison contains the first {_MAX_TASKS:,} of {tasks:,} tasks."] if tasks > _MAX_TASKS else []


def _as_dict(record: object) -> object:
    assert isinstance(record, Record)
    return record.model_dump()
