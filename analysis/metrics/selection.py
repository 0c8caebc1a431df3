"""Selects rollouts by an expression: those of a file's index, or those of rows that are read one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollyard.analysis.metrics.columns import COMPUTED, Columns, Ints, RolloutParser, computed_column
from rollyard.analysis.metrics.row_notes import notes_in, notes_of_rows
from rollyard.analysis.metrics.solved import with_solved
from rollyard.records.errors import OperatorError
from rollyard.records.expression_parser import ExpressionError, FieldPath, Node, fields_of, parse
from rollyard.records.expressions import Column, Mask, column_of, selected
from rollyard.records.jsonl import lenient, line_at
from rollyard.records.note_records import NOTE_FIELDS, RolloutNotes, is_note_field, note_columns
from rollyard.records.rollout_file import Rollouts
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.tokens import DERIVED, reader_of
from rollyard.records.types import Json, mapping

_MAX_TEXT = 20_000
"""Characters that are kept of a string. Without a limit, a field with long texts would fill the memory."""


def read_fields(path: Path, offsets: Ints, paths: Iterable[FieldPath]) -> dict[FieldPath, Column]:
    """Return the fields of the rows that begin at the byte `offsets`, one value each; None where a row has none.

    Raises OSError if the file cannot be read.
    """
    wanted = list(dict.fromkeys(paths))
    values: list[list[Any]] = [[None] * len(offsets) for _ in wanted]
    readers = [reader_of(field) for field in wanted]
    order = offsets.argsort(kind="stable").tolist()  # in the order of the file, which is faster to read
    for index in order if wanted else ():
        row = _row(path, int(offsets[index]))
        for kept, read in zip(values, readers, strict=True):
            kept[index] = bounded(read(row))
    return {field: column_of(kept) for field, kept in zip(wanted, values, strict=True)}


def _row(path: Path, offset: int) -> Json:
    try:
        return mapping(lenient(line_at(path, offset)))
    except ValueError:  # the file has changed since it was indexed
        return {}


def bounded(value: Any) -> Any:
    """Return the value of a field as expressions see it: long strings are cut."""
    return value[:_MAX_TEXT] if isinstance(value, str) else value


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
    """Return which measured rollouts meet the condition, given its `stored_fields` and `note_fields`."""
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
        """Return what counts as solved, which is only known from all rows of the file, by the rows' offsets."""
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


class SelectedRollouts(Rollouts):
    """Only the measured rollouts that meet an expression, such as `reward < 0.5 and tool_calls > 3`."""

    def __init__(self, path: Path, where: str) -> None:
        """Raises RunError if `path` is not a file, and OperatorError if `where` is not an expression."""
        super().__init__(path)
        self._where = where
        self._condition = RowCondition(where, path)

    def __repr__(self) -> str:
        return f"SelectedRollouts({str(self.path)!r}, {self._where!r})"

    def __iter__(self) -> Iterator[RolloutRow]:
        """Yield the rows that meet the expression.

        Raises RunError as `Rollouts` does, and OperatorError at the end if no row has one of the expression's fields.
        """
        return self._condition.among(self.with_offsets())
