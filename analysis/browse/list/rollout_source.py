"""RolloutSource: which rollouts of a file a list shows, and the fields of those on the screen."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollyard.analysis.viewer.api_records import ColumnHead, RolloutLine
from rollyard.analysis.viewer.rollout_list import Indexes, Listing, Query, Table
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.records.verdict_fields import ROLES

_MAX_KEPT = 5000
"""Number of rollouts whose fields are kept in memory."""
Scope = Callable[[Table], Indexes]
"""Returns the rollouts of a table to which a list is restricted, such as those of a finding."""


@dataclass(frozen=True)
class Listed:
    """The rollouts of a list at one moment. It does not change when the file grows."""

    listing: Listing
    indexes: Indexes
    """Their places in the table, in the order of the list."""
    searched: float
    """Share of the file that has been searched for them."""

    def __len__(self) -> int:
        return len(self.indexes)

    @property
    def table(self) -> Table:
        return self.listing.table

    def line(self, at: int) -> RolloutLine:
        """Return the rollout at a place in the list."""
        return self.table.line(int(self.indexes[at]))

    def find(self, task: int, repeat: int) -> int | None:
        """Return the place of a rollout in the list; None if the list lacks it."""
        index = self.table.find(task, repeat)
        if index is None:
            return None
        found = np.flatnonzero(self.indexes == index)
        return int(found[0]) if len(found) else None


@dataclass(frozen=True)
class _Cells:
    generation: int
    columns: str
    values: OrderedDict[int, dict[str, Any]]
    heads: dict[str, ColumnHead]


class RolloutSource:
    """Reads one file for one list. Thread-safe. `listed` and `read` may take a quarter of a second, so that pages call
    them in a thread.
    """

    def __init__(self, run: RunFile, scope: Scope | None = None) -> None:
        self.run = run
        self._scope = scope
        self._cells = _Cells(-1, "", OrderedDict(), {})
        self._reading = threading.Lock()

    def listed(self, query: Query) -> Listed:
        """Return the rollouts that the query selects. Raises ExpressionError if it is invalid."""
        listing, indexes, searched = self.run.select(query)
        if self._scope is not None:
            indexes = indexes[np.isin(indexes, self._scope(listing.table))]
        return Listed(listing, indexes, searched)

    def is_current(self, listed: Listed) -> bool:
        """Return whether the file has not changed since, and has been searched to its end."""
        return self.run.listing is listed.listing and listed.searched >= 1

    def heads(self, columns: str) -> list[ColumnHead]:
        """Return the columns that the fields read so far have."""
        heads = self._cells.heads.values() if self._cells.columns == columns else ()
        return sorted(heads, key=lambda head: ROLES.index(head.role) if head.role else len(ROLES))

    def fields(self, listed: Listed, at: int, columns: str) -> dict[str, Any] | None:
        """Return the fields of a rollout by path; None if `read` has not read them for these columns."""
        if self._cells.columns != columns:
            return None
        return self._cells.values.get(int(listed.table.offset[listed.indexes[at]]))

    def read(self, listed: Listed, columns: str, first: int, count: int) -> None:
        """Read the fields of `count` rollouts. Raises ExpressionError if `columns` is invalid, and OSError if the file
        cannot be read.
        """
        with self._reading:
            self._read(listed, columns, first, count)

    def _read(self, listed: Listed, columns: str, first: int, count: int) -> None:
        self._prepare(columns)
        cells = self._cells
        offsets = listed.table.offset
        indexes = np.array(
            [at for at in listed.indexes[first : first + count].tolist() if int(offsets[at]) not in cells.values],
            np.intp,
        )
        if not len(indexes):
            return
        heads, values = self.run.cells(listed.listing, indexes, columns)
        for head in heads:
            cells.heads.setdefault(head.path, head)
        for index, row in zip(indexes.tolist(), values, strict=True):
            cells.values[int(offsets[index])] = _by_path(heads, row)
        while len(cells.values) > _MAX_KEPT:
            cells.values.popitem(last=False)

    def _prepare(self, columns: str) -> None:
        generation = self.run.file.generation
        if (self._cells.generation, self._cells.columns) != (generation, columns):
            self._cells = _Cells(generation, columns, OrderedDict(), {})


def _by_path(heads: Sequence[ColumnHead], row: Sequence[Any]) -> dict[str, Any]:
    return {head.path: value for head, value in zip(heads, row, strict=True)}
