"""Selects rollouts by an expression: those of a file's index, or those of rows that are read one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from rollyard.analysis.metrics.loader.columns import Columns
from rollyard.analysis.metrics.loader.computed_columns import COMPUTED, computed_column
from rollyard.analysis.metrics.loader.field_reader import bounded, read_fields
from rollyard.analysis.metrics.loader.rollout_parser import RolloutParser
from rollyard.analysis.metrics.solved import with_solved
from rollyard.analysis.notes.file_notes import notes_in, notes_of_rows
from rollyard.records.errors import OperatorError
from rollyard.records.expressions.column import Column, column_of
from rollyard.records.expressions.evaluate import Mask, selected
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.expressions.nodes import Node, fields_of
from rollyard.records.expressions.parse import ExpressionError, parse
from rollyard.records.notes.current_state import RolloutNotes
from rollyard.records.notes.note_fields import NOTE_FIELDS, is_note_field, note_columns
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rollouts.rollout_file import Rollouts
from rollyard.records.rollouts.tokens.derived_fields import DERIVED, reader_of

_TASK, _REPEAT, _SUCCESS = FieldPath(("task",)), FieldPath(("repeat",)), FieldPath(("success",))


def parsed_condition(text: str) -> Node:
    """Parse the value of an option `where`. Raises OperatorError."""
    try:
        return parse(text)
    except ExpressionError as error:
        raise OperatorError(f"where: {error}") from error


def reads_task(text: str) -> bool:
    """Return whether a valid expression reads the index of the task or of the repeat."""
    return not {_TASK, _REPEAT}.isdisjoint(fields_of(parse(text)))


def rollouts_where(path: Path, columns: Columns, condition: Node) -> Mask:
    """Return which measured rollouts of the file meet the condition. `columns`: the file's.

    Fields that are not computed columns are read from the file. Raises OperatorError if it cannot be read, or if no row
    has one of the fields.
    """
    try:
        found = read_fields(path, columns.offset, stored_fields(condition))
    except OSError as error:
        raise OperatorError(f"rollout file {str(path)!r} cannot be read: {error.strerror or error}") from error
    if len(columns):
        _check_known(path, [field for field, column in found.items() if column.missing.all()])
    if noted := note_fields(condition):
        found |= note_columns(noted, notes_in(path, columns), columns.offset.tolist())
    return mask_of(columns, condition, found)


def stored_fields(condition: Node) -> list[FieldPath]:
    """Return the fields of the condition that are read or computed from the rows, each once."""
    fields = dict.fromkeys(fields_of(condition))
    return [field for field in fields if field.column not in COMPUTED and not is_note_field(field)]


def note_fields(condition: Node) -> list[FieldPath]:
    """Return the fields of the condition that are read from the notes, each once."""
    return [field for field in dict.fromkeys(fields_of(condition)) if is_note_field(field)]


def mask_of(columns: Columns, condition: Node, found: Mapping[FieldPath, Column]) -> Mask:
    """Return which measured rollouts meet the condition. `found`: the values of its `stored_fields` and
    `note_fields`.
    """
    computed = {
        field: computed_column(columns, field.column) for field in fields_of(condition) if field.column in COMPUTED
    }
    return selected(condition, computed | dict(found), len(columns))


class RowCondition:
    """An expression over rows that are read one after another, with the meaning that it has in a report."""

    def __init__(self, text: str, source: Path) -> None:
        """`source`: the file that an error names. Raises OperatorError if `text` is not an expression."""
        self._condition = parsed_condition(text)
        self._source = source
        self._readers = {field: reader_of(field) for field in stored_fields(self._condition)}
        self._note_fields = note_fields(self._condition)

    def among(self, rows: Iterable[tuple[int, RolloutRow]]) -> Iterator[RolloutRow]:
        """Yield the measured rows that meet the expression. `rows`: each with its offset.

        Raises RunError if the notes cannot be read, and OperatorError at the end if no row has one of the
        expression's fields.
        """
        absent, indexed, any_row = set(self._readers), None, False
        solved: dict[int, float] | None = None
        notes: dict[int, RolloutNotes] = notes_of_rows(self._source) if self._note_fields else {}
        for number, (offset, row) in enumerate(rows):
            indexed = "_ng_task_index" in row if indexed is None else indexed
            parser = RolloutParser(indexed=indexed)
            try:
                parser.add(row, offset)
            except ValueError as error:
                raise OperatorError(f"where: a row of {self._source} {error}") from error
            columns = parser.columns()
            if not len(columns):
                continue
            any_row = True
            found = {field: column_of([bounded(value(row))]) for field, value in self._readers.items()}
            found |= note_columns(self._note_fields, notes, [offset])
            absent -= {field for field in absent if not found[field].missing.all()}
            if not indexed and _TASK in fields_of(self._condition):  # tasks are numbered in the order of the file
                columns.task[0] = number
            if _SUCCESS in fields_of(self._condition) and np.isnan(columns.success[0]):
                solved = self._solved() if solved is None else solved
                columns.success[0] = solved.get(offset, np.nan)
            if mask_of(columns, self._condition, found)[0]:
                yield row
        if any_row:
            _check_known(self._source, absent)

    def _solved(self) -> dict[int, float]:
        """Return what counts as solved by the rows' offsets. It is only known from all rows of the file, which may be
        compressed.
        """
        parser = RolloutParser(indexed=False)
        for offset, row in Rollouts(self._source).with_offsets():
            parser.add(row, offset)
        columns = with_solved(parser.columns())
        return dict(zip(columns.offset.tolist(), columns.success.tolist(), strict=True))


def _check_known(path: Path, absent: Iterable[FieldPath]) -> None:
    for field in absent:
        if field.column in DERIVED:
            raise OperatorError(
                f"where: no row of {path} has what {field} is computed from. Expected recorded tokens: collect with "
                "return_token_id_information: true in the settings of the model server"
            )
        raise OperatorError(
            f"where: no row of {path} has the field {field}. Expected a key of the rows, such as "
            f"response.usage.output_tokens, or one of {', '.join((*COMPUTED, *DERIVED, *NOTE_FIELDS))}"
        )
