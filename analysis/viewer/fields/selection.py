"""Evaluates the expression and the sort key of a list over its rollouts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.loader.columns import Columns
from rollyard.analysis.metrics.loader.computed_columns import COMPUTED, computed_column
from rollyard.analysis.metrics.loader.where import mask_of, note_fields, stored_fields
from rollyard.analysis.viewer.fields.field_columns import FieldColumns, FieldValues
from rollyard.analysis.viewer.fields.paced_cache import Identity, PacedCache
from rollyard.records.expressions.column import Column
from rollyard.records.expressions.evaluate import Mask
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.expressions.parse import parse, parse_field

_MAX_SELECTIONS = 6
"""Each takes 9 MB for a million rollouts."""


@dataclass(frozen=True)
class Selection:
    """What an expression and a sort key mean for the rollouts of a table."""

    mask: Mask | None = None
    """Which rollouts meet the expression; None if there is no expression. Unmeasured rollouts never do."""
    ranks: NDArray[np.float64] | None = None
    """Values to sort by, NaN where missing; None if the sort key is a column of the table."""
    searched: float = 1.0
    """Share of the file that has been read for it."""
    version: str = ""
    """Differs between selections whose expression or sort key is the same, but for which more has been read, or
    other notes have been written."""


class Selections:
    """Evaluates expressions and sort keys of one file; keeps the latest results. Thread-safe."""

    def __init__(self, fields: FieldColumns) -> None:
        self._fields = fields
        self._kept = PacedCache[Selection](_MAX_SELECTIONS)

    def of(self, columns: Columns, measured: Mask, until: int, where: str, sort: str) -> Selection:
        """Return the selection. `measured`: which rollouts of the table are those of `columns`, in the same order.

        Raises ExpressionError if `where` or `sort` is invalid.
        """
        if not where and not sort:
            return Selection()
        wanted = [*stored_fields(parse(where)), *note_fields(parse(where))] if where else []
        if sort and (field := parse_field(sort)).column not in COMPUTED and field not in wanted:
            wanted.append(field)
        found = self._fields.read(wanted, until, columns.offset)  # one pass for both
        chosen = self._kept.get(
            (where, sort, Identity(columns), Identity(measured)),
            (found.covered, found.notes),
            lambda: _selection(columns, measured, where, sort, found),
            final=found.covered >= until,
        )
        return replace(chosen, searched=found.share(until))

    def clear(self) -> None:
        """Forget the results, because the file was changed or is being closed."""
        self._kept.clear()


def column_named(fields: FieldColumns, columns: Columns, until: int, name: str) -> tuple[Column, FieldValues]:
    """Return the values of a field over the measured rollouts, and how much of the file has been read for them.

    Raises ExpressionError if `name` is not a field.
    """
    field = parse_field(name)
    if field.column in COMPUTED:
        return computed_column(columns, field.column), FieldValues({}, until, until)
    found = fields.read([field], until, columns.offset)
    return found.columns[field], found


def _selection(columns: Columns, measured: Mask, where: str, sort: str, found: FieldValues) -> Selection:
    mask, ranks, places = None, None, np.flatnonzero(measured)
    if where:
        mask = np.zeros(len(measured), bool)
        mask[places] = mask_of(columns, parse(where), found.columns) & (columns.offset < found.covered)
    if sort:
        ranks = np.full(len(measured), np.nan)
        ranks[places] = _ranks(_values(columns, parse_field(sort), found))
    return Selection(mask, ranks, version=f"{found.covered} {found.notes}")


def _values(columns: Columns, field: FieldPath, found: FieldValues) -> Column:
    return computed_column(columns, field.column) if field.column in COMPUTED else found.columns[field]


def _ranks(column: Column) -> NDArray[np.float64]:
    """Return numbers in the order of the values. Numbers precede texts, and texts are in alphabetical order."""
    if column.numeric:
        return column.values
    keys = [
        None if value is None else (0, value, "") if isinstance(value, int | float) else (1, 0, str(value))
        for value in column.values
    ]
    places = {key: place for place, key in enumerate(sorted({key for key in keys if key is not None}))}
    return np.array([np.nan if key is None else places[key] for key in keys], np.float64)
