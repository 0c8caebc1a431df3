"""Reads a rollout file in Python: row by row, as an Arrow table, or as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import orjson

from rollyard.records.datasets.data_files import lines_of
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.expressions.parse import ExpressionError, parse_field
from rollyard.records.io.jsonl import BadLine, iter_jsonl, refuse
from rollyard.records.io.lines import with_offsets
from rollyard.records.io.optional import load
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rollouts.tokens.derived_fields import reader_of


class Rollouts:
    """The rows of a file in the order in which they were stored. Each iteration reads the file from the start."""

    def __init__(self, path: Path) -> None:
        """Raises RunError if `path` is not a file."""
        if path.is_dir():
            raise RunError(f"{path} is a folder; expected a rollout file, such as the output of ng_collect_rollouts")
        if not path.is_file():
            raise RunError(f"{path} does not exist; expected a rollout file, such as the output of ng_collect_rollouts")
        self.path = path

    def __repr__(self) -> str:
        return f"Rollouts({str(self.path)!r})"

    def __iter__(self) -> Iterator[RolloutRow]:
        """Yield the rows. Raises RunError as `with_offsets` does."""
        return (row for _, row in self.with_offsets())

    def with_offsets(self) -> Iterator[tuple[int, RolloutRow]]:
        """Yield each row with its byte offset, in the decompressed data if the file is compressed.

        Raises RunError if a line is not a JSON object, unless it is the last line and is still being written.
        """
        invalid = refuse(self.path)

        def on_error(bad: BadLine) -> None:
            if not bad.torn:
                invalid(bad)

        for line in iter_jsonl(with_offsets(lines_of(self.path)), on_error):
            yield line.offset, cast(RolloutRow, line.value)

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Return a `pyarrow.Table` of these columns (default: all). Raises OperatorError if pyarrow is not installed.

        Objects, lists, and columns with values of several types become JSON text, because the items of a conversation
        do not fit Arrow's types.
        """
        arrow = load("pyarrow", "hub", "to_arrow")
        return arrow.table({name: arrow.array(_uniform(values)) for name, values in self._columns(columns).items()})

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Return a `pandas.DataFrame`; objects and lists stay unchanged. Raises OperatorError if pandas is missing.

        `columns`: keys of the rows, or fields as in an expression, such as `response.usage.output_tokens`.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise OperatorError("to_pandas requires the package pandas: pip install pandas") from error
        return pandas.DataFrame(self._columns(columns))

    def _columns(self, names: Sequence[str] | None) -> dict[str, list[Any]]:
        """Return the columns `names`, or a column for every key if `names` is None. Missing values are None.

        A name that is not a key of the row is a field as in an expression, such as `response.usage.output_tokens`.
        """
        if isinstance(names, str):
            raise OperatorError(f"columns is {names!r}; expected a list of names, such as [{names!r}]")
        columns: dict[str, list[Any]] = {name: [] for name in names or ()}
        readers = {name: reader for name in columns if (reader := _reader_of(name)) is not None}
        for count, row in enumerate(self):
            for name in row if names is None else ():
                if name not in columns:
                    columns[name] = [None] * count
            for name, values in columns.items():
                reader = readers.get(name)
                values.append(row.get(name) if reader is None or name in row else reader(row))
        return columns


def _reader_of(name: str) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return a function that reads the field from a row; None if `name` can only be a key."""
    try:
        return reader_of(parse_field(name))
    except ExpressionError:
        return None


def _uniform(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if (len(kinds) <= 1 and not kinds & {dict, list}) or kinds == {int, float}:
        return values
    return [value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values]
