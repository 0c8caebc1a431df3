"""Defines the table of a file's rollouts, measured or failed, sorted by (task, repeat)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.loader.columns import CategoryColumn, Columns, Floats, Ints, joined_categories
from rollyard.analysis.metrics.solved import which_solved
from rollyard.analysis.viewer.api.api_records import RolloutLine
from rollyard.analysis.viewer.index.failed_attempts import Failed

NO_ROW = -1
"""Offset of a rollout that has no row because all of its attempts failed."""
_NUMBERS = ("tool_calls", "turns", "output_tokens", "seconds")


@dataclass(frozen=True)
class Table:
    """A file's rollouts as arrays of the same length, with NaN for missing values."""

    task: Ints
    repeat: Ints
    offset: Ints
    measured: NDArray[np.bool_]
    reward: Floats
    success: Floats
    tool_calls: Floats
    turns: Floats
    output_tokens: Floats
    seconds: Floats
    end: CategoryColumn
    agent: CategoryColumn

    def __len__(self) -> int:
        return len(self.task)

    def find(self, task: int, repeat: int) -> int | None:
        """Return the index of a rollout; None if it is not in the table."""
        low, high = self.of_task(task)
        index = low + int(np.searchsorted(self.repeat[low:high], repeat))
        return index if index < high and self.repeat[index] == repeat else None

    def of_task(self, task: int) -> tuple[int, int]:
        """Return the range of a task's rollouts: the index of the first, and the index after the last."""
        low, high = np.searchsorted(self.task, [task, task + 1])
        return int(low), int(high)

    def line(self, index: int) -> RolloutLine:
        """Return the record of one rollout."""
        success = _float(self.success[index])
        return RolloutLine(
            task=int(self.task[index]),
            repeat=int(self.repeat[index]),
            outcome="measured" if self.measured[index] else "failed",
            reward=_float(self.reward[index]),
            success=None if success is None else success == 1,
            tool_calls=_integer(self.tool_calls[index]),
            turns=_integer(self.turns[index]),
            output_tokens=_integer(self.output_tokens[index]),
            seconds=_float(self.seconds[index]),
            end=_name(self.end, index),
            agent=_name(self.agent, index),
        )


def table_of(columns: Columns, failed: Failed, threshold: float | None = None) -> Table:
    """Build the table from measured rows, rows without a reward, and `failed` attempts at rollouts that have no row.

    Rewards of at least `threshold` count as solved.
    """
    solved = which_solved(columns, threshold)[1]
    count = len(columns)
    measured = Table(
        columns.task,
        columns.repeat,
        columns.offset,
        np.ones(count, bool),
        columns.reward,
        np.full(count, np.nan) if solved is None else solved.astype(float),
        columns.tool_calls,
        columns.turns,
        columns.output_tokens,
        columns.stages.get("total", np.full(count, np.nan)),
        columns.end,
        columns.agent,
    )
    others = [part for part in (_lost(columns), _failed_attempts(failed)) if len(part)]
    return _joined([measured, *others]) if others else measured


def _lost(columns: Columns) -> Table:
    """Return the rows without a reward, with each rollout's last row first."""
    lost = columns.unmeasured
    numbers = [getattr(lost, name)[::-1] for name in _NUMBERS]
    kind, agent = (
        CategoryColumn(lost.kind.codes[::-1], lost.kind.names),
        CategoryColumn(lost.agent.codes[::-1], lost.agent.names),
    )
    return _failed(lost.task[::-1], lost.repeat[::-1], lost.offset[::-1], numbers, kind, agent)


def _failed_attempts(failed: Failed) -> Table:
    """Return the failed attempts, with each rollout's last attempt first."""
    kind, agent = (
        CategoryColumn(failed.kind.codes[::-1], failed.kind.names),
        CategoryColumn(failed.agent.codes[::-1], failed.agent.names),
    )
    missing = np.full(len(failed.task), np.nan)
    no_row = np.full(len(failed.task), NO_ROW)
    return _failed(failed.task[::-1], failed.repeat[::-1], no_row, [missing] * len(_NUMBERS), kind, agent)


def _failed(
    task: Ints, repeat: Ints, offset: Ints, numbers: list[Floats], kind: CategoryColumn, agent: CategoryColumn
) -> Table:
    missing, measured = np.full(len(task), np.nan), np.zeros(len(task), bool)
    calls, turns, tokens, seconds = numbers
    return Table(task, repeat, offset, measured, missing, missing, calls, turns, tokens, seconds, kind, agent)


def _joined(parts: list[Table]) -> Table:
    """Concatenate the parts and sort them by (task, repeat). If parts contain the same rollout, the first part takes
    precedence.
    """
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("task", "repeat", "offset", "measured", "reward", "success", *_NUMBERS)
    }
    order = np.lexsort((arrays["repeat"], arrays["task"]))
    task, repeat = arrays["task"][order], arrays["repeat"][order]
    order = order[(np.diff(task, prepend=-1) != 0) | (np.diff(repeat, prepend=-1) != 0)]
    chosen = {name: array[order] for name, array in arrays.items()}
    for name in ("end", "agent"):
        column = joined_categories([getattr(part, name) for part in parts])
        chosen[name] = CategoryColumn(column.codes[order], column.names)
    return Table(**chosen)


def _float(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _integer(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


def _name(column: CategoryColumn, index: int) -> str:
    code = column.codes[index]
    return column.names[code] if code >= 0 else ""
