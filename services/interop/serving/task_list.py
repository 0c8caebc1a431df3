"""The tasks that a served environment offers, and how a client chooses one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rollyard.records.datasets.data_files import DataFile
from rollyard.records.datasets.rows import rows_of
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json

SPLITS = ("train", "validation", "test")


class UnknownTask(ValueError):
    """The client asked for a task that does not exist. The message says which ones do."""


class TaskList:
    """The rows of one dataset, under the name of a split."""

    def __init__(self, rows: Sequence[Json], split: str = "train") -> None:
        self.rows = rows
        self.split = split

    @classmethod
    def read(cls, file: DataFile, split: str) -> TaskList:
        """Read a dataset file. Raises OperatorError if a row is invalid, or if there are none."""
        rows = []
        for row in rows_of(file):
            if row.problem:
                raise OperatorError(f"{file}: line {row.line}{row.problem}")
            rows.append(row.value)
        if not rows:
            raise OperatorError(f"{file} has no rows")
        return cls(rows, split)

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: Any) -> Json:
        """Return the row with this number, counted from 0. Raises UnknownTask."""
        if not isinstance(index, int) or isinstance(index, bool):
            raise UnknownTask(f"index is {index!r:.100}; expected an integer")
        if not 0 <= index < len(self.rows):
            raise UnknownTask(f"index is {index!r:.40}; there are {len(self.rows)} tasks, counted from 0")
        return self.rows[index]

    def choose(self, asked: Json) -> Json:
        """Return the row for a reset: `row` itself, else number `index`, else `seed` modulo the number of rows.

        Without any of them, the row is random. Raises UnknownTask.
        """
        if (row := asked.get("row")) is not None:
            if not isinstance(row, dict):
                raise UnknownTask(f"row is a JSON {type(row).__name__}; expected an object")
            return row
        if asked.get("index") is not None:
            return self.row(asked["index"])
        if not self.rows:
            raise UnknownTask("this server has no tasks: send `row`, or start it with --data FILE")
        seed = asked.get("seed")
        if seed is None:
            return random.choice(self.rows)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UnknownTask(f"seed is {seed!r:.100}; expected a non-negative integer")
        return self.rows[seed % len(self.rows)]

    def check_split(self, split: Any) -> None:
        """Raise UnknownTask unless this is the name of the only split."""
        if split != self.split:
            raise UnknownTask(f"split is {split!r:.100}; this server has only {self.split!r}")

    def between(self, start: Any, stop: Any) -> list[int]:
        """Return the numbers of the tasks in `range(start, stop)`; both may be None or negative, as in a slice."""
        for name, value in (("start", start), ("stop", stop)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UnknownTask(f"{name} is {value!r:.100}; expected an integer or null")
        return list(range(len(self.rows)))[start:stop]
