"""Selects rollouts of a file by an expression."""

from __future__ import annotations

from pathlib import Path

from rollyard.services.errors import OperatorError
from rollyard.services.expressions.column import Column
from rollyard.services.expressions.evaluate import Mask, selected
from rollyard.services.expressions.field_path import FieldPath
from rollyard.services.expressions.nodes import Node, fields_of
from rollyard.services.expressions.parse import ExpressionError, parse
from rollyard.services.metrics.loader.columns import Columns
from rollyard.services.metrics.loader.computed_columns import COMPUTED, computed_column
from rollyard.services.metrics.loader.field_reader import read_fields


def parsed_condition(text: str) -> Node:
    """Parse the value of an option `where`. Raises OperatorError."""
    try:
        return parse(text)
    except ExpressionError as error:
        raise OperatorError(f"where: {error}") from error


def rollouts_where(path: Path, columns: Columns, condition: Node) -> Mask:
    """Return which measured rollouts of the file meet the condition. `columns`: the file's.

    Fields that are not computed columns are read from the file. Raises OperatorError if it cannot be read, or if no row
    has one of the fields.
    """
    fields = list(dict.fromkeys(fields_of(condition)))
    computed = {field: computed_column(columns, field.column) for field in fields if field.column in COMPUTED}
    try:
        found = read_fields(path, columns.offset, [field for field in fields if field not in computed])
    except OSError as error:
        raise OperatorError(f"rollout file {str(path)!r} cannot be read: {error.strerror or error}") from error
    _check_known(path, found)
    return selected(condition, computed | found, len(columns))


def _check_known(path: Path, found: dict[FieldPath, Column]) -> None:
    for field, column in found.items():
        if len(column) and column.missing.all():
            raise OperatorError(
                f"where: no row of {path} has the field {field}. Expected a key of the rows, such as "
                f"response.usage.output_tokens, or one of {', '.join(COMPUTED)}"
            )
