"""Snapshot: what is known of a rollout file at one moment; never changed, so that any thread may read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.services.metrics.loader.columns import CategoryColumn, Columns, merged
from rollyard.services.metrics.loader.parallel_reader import Part
from rollyard.services.metrics.loader.rollout_parser import RolloutParser


@dataclass(frozen=True)
class Snapshot:
    """Rollouts of the file's first `end` bytes, each once."""

    columns: Columns
    """By (task, repeat)."""
    end: int = 0
    says_task: bool = True
    """False: rows do not say which task they are, and each is a task of its own, numbered as it stands in the file."""
    bad_lines: int = 0
    bad: tuple[int, str] | None = None
    """The first line that is no rollout: its byte, and why."""
    twice: int = 0
    """Rows left out, because their rollout stands in the file already."""

    @property
    def error(self) -> str:
        """What is wrong with the file, in words."""
        said = []
        if self.bad is not None:
            count = "1 line is" if self.bad_lines == 1 else f"{self.bad_lines} lines are"
            place, why = self.bad
            said.append(f"{count} no rollout and left out; the first (at byte {place}){why}.")
        if self.twice:
            rows = "1 row is a rollout" if self.twice == 1 else f"{self.twice} rows are rollouts"
            said.append(f"{rows} that stood in the file before: of each the first counts.")
        return " ".join(said)


def empty() -> Snapshot:
    """Of a file that is not read yet."""
    return Snapshot(RolloutParser().columns())


def extended(snapshot: Snapshot, parts: Sequence[Part], *, says_task: bool) -> Snapshot:
    """With the `parts` that follow it in the file."""
    columns = merged([snapshot.columns, *(part.columns for part in parts)])
    twice = 0
    if says_task:
        columns, twice = _once(columns)
    else:
        columns = _numbered(columns)
    return Snapshot(
        columns,
        end=max(snapshot.end, *(part.stop for part in parts)),
        says_task=says_task,
        bad_lines=snapshot.bad_lines + sum(part.bad_lines for part in parts),
        bad=snapshot.bad or next((part.bad for part in parts if part.bad), None),
        twice=snapshot.twice + twice,
    )


def _once(columns: Columns) -> tuple[Columns, int]:
    """The first of each rollout in the file's order, which sorting kept; and how many were left out."""
    again = (np.diff(columns.task, prepend=-1) == 0) & (np.diff(columns.repeat, prepend=-1) == 0)
    count = int(again.sum())
    return (_chosen(columns, ~again), count) if count else (columns, 0)


def _chosen(columns: Columns, which: NDArray[np.bool_]) -> Columns:
    made: dict[str, Any] = {}
    for field in fields(columns):
        value = getattr(columns, field.name)
        if isinstance(value, CategoryColumn):
            made[field.name] = CategoryColumn(value.codes[which], value.names)
        elif isinstance(value, dict):
            made[field.name] = {name: seconds[which] for name, seconds in value.items()}
        elif isinstance(value, np.ndarray):
            made[field.name] = value[which]
    return replace(columns, **made)


def _numbered(columns: Columns) -> Columns:
    """Tasks by their place in the file. Offsets order rows as these numbers do, so the order stays."""
    lost = columns.unmeasured
    places = np.sort(np.concatenate([columns.offset, lost.offset]))
    numbered = replace(lost, task=np.searchsorted(places, lost.offset))
    return replace(columns, task=np.searchsorted(places, columns.offset), unmeasured=numbered)
