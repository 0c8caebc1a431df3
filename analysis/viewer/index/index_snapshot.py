"""Defines an immutable snapshot of a rollout file's index, which any thread can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.loader.columns import CategoryColumn, Columns, merged, numbered_in_file_order
from rollyard.analysis.metrics.loader.parallel_reader import Part
from rollyard.analysis.metrics.loader.rollout_parser import RolloutParser


@dataclass(frozen=True)
class Snapshot:
    """The rollouts in the first `end` bytes of the file, without duplicates."""

    columns: Columns
    """Sorted by (task, repeat)."""
    end: int = 0
    has_task_index: bool = True
    """Whether rows have a task index. If not, each row counts as a task, and tasks are numbered in file order."""
    bad_lines: int = 0
    bad: tuple[int, str] | None = None
    """The byte offset of the first invalid line, and the reason."""
    duplicates: int = 0
    """Number of rows that are excluded because their rollout already occurs earlier in the file."""

    @property
    def error(self) -> str:
        """A message about invalid and duplicate lines in the file; empty if there are none."""
        problems = []
        if self.bad is not None:
            count = "1 line is" if self.bad_lines == 1 else f"{self.bad_lines} lines are"
            offset, why = self.bad
            problems.append(f"{count} not a valid rollout and excluded; the first (at byte {offset}){why}.")
        if self.duplicates:
            rows = "1 row is a duplicate" if self.duplicates == 1 else f"{self.duplicates} rows are duplicates"
            problems.append(f"{rows} and excluded; the first row of a rollout counts.")
        return " ".join(problems)


def empty() -> Snapshot:
    """Return the snapshot of a file that has not been read yet."""
    return Snapshot(RolloutParser().columns())


def extended(snapshot: Snapshot, parts: Sequence[Part], *, has_task_index: bool) -> Snapshot:
    """Return the snapshot extended by `parts`, which must directly follow it in the file."""
    columns = merged([snapshot.columns, *(part.columns for part in parts)])
    duplicates = 0
    if has_task_index:
        columns, duplicates = _without_duplicates(columns)
    else:
        columns = numbered_in_file_order(columns)
    return Snapshot(
        columns,
        end=max(snapshot.end, *(part.stop for part in parts)),
        has_task_index=has_task_index,
        bad_lines=snapshot.bad_lines + sum(part.bad_lines for part in parts),
        bad=snapshot.bad or next((part.bad for part in parts if part.bad), None),
        duplicates=snapshot.duplicates + duplicates,
    )


def _without_duplicates(columns: Columns) -> tuple[Columns, int]:
    """Return only the first row of each rollout in the file, and the number of duplicates that were removed."""
    repeats = (np.diff(columns.task, prepend=-1) == 0) & (np.diff(columns.repeat, prepend=-1) == 0)
    count = int(repeats.sum())
    return (_chosen(columns, ~repeats), count) if count else (columns, 0)


def _chosen(columns: Columns, mask: NDArray[np.bool_]) -> Columns:
    arrays: dict[str, Any] = {}
    for field in fields(columns):
        value = getattr(columns, field.name)
        if isinstance(value, CategoryColumn):
            arrays[field.name] = CategoryColumn(value.codes[mask], value.names)
        elif isinstance(value, dict):
            arrays[field.name] = {name: seconds[mask] for name, seconds in value.items()}
        elif isinstance(value, np.ndarray):
            arrays[field.name] = value[mask]
    return replace(columns, **arrays)
