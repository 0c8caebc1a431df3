"""The rows of a rollout file, for Python: one by one, as an Arrow table, or as a pandas data frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import orjson

from rollyard.services.datasets.data_files import lines_of
from rollyard.services.errors import OperatorError, RunError
from rollyard.services.io.jsonl import BadLine, iter_jsonl, refuse
from rollyard.services.io.lines import with_offsets
from rollyard.services.io.optional import load
from rollyard.services.rollout_types import RolloutRow


class Rollouts:
    """Rows in the order in which they were stored. Each iteration reads the file from its first line on."""

    def __init__(self, path: Path) -> None:
        """Raises RunError where there is no such file."""
        if not path.is_file():
            raise RunError(f"{path} is not there; expected a file of rollouts, such as +output_jsonl_fpath names")
        self.path = path

    def __repr__(self) -> str:
        return f"Rollouts({str(self.path)!r})"

    def __iter__(self) -> Iterator[RolloutRow]:
        """Raises RunError at a line that is not a JSON object, except a last line that is still being written."""
        invalid = refuse(self.path)

        def on_error(bad: BadLine) -> None:
            if not bad.torn:
                invalid(bad)

        for line in iter_jsonl(with_offsets(lines_of(self.path)), on_error):
            yield cast(RolloutRow, line.value)

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """A `pyarrow.Table`. Raises OperatorError where pyarrow is not installed.

        Objects and lists, and columns that hold values of several kinds, become JSON text: a conversation's items
        differ too much for Arrow's types.
        """
        arrow = load("pyarrow", "hub", "to_arrow")
        return arrow.table({name: arrow.array(_uniform(values)) for name, values in self._columns(columns).items()})

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """A `pandas.DataFrame`; objects and lists stay what they are. Raises OperatorError without pandas."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise OperatorError("to_pandas needs the package pandas: pip install pandas") from error
        return pandas.DataFrame(self._columns(columns))

    def _columns(self, names: Sequence[str] | None) -> dict[str, list[Any]]:
        """Of every row's keys, or those of `names` alone; a row without one has None there."""
        columns: dict[str, list[Any]] = {name: [] for name in names or ()}
        for count, row in enumerate(self):
            for name in row if names is None else ():
                if name not in columns:
                    columns[name] = [None] * count
            for name, values in columns.items():
                values.append(row.get(name))
        return columns


def _uniform(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if (len(kinds) <= 1 and not kinds & {dict, list}) or kinds == {int, float}:
        return values
    return [value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values]
