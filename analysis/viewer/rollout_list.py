"""The list of a file's rollouts: filtered, sorted and paged. This takes milliseconds for a million rollouts.

`Table` has a row for each rollout, measured or failed; `Listing` provides its pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rollyard.analysis.metrics.columns import CategoryColumn, Columns, Floats, Ints, joined_categories
from rollyard.analysis.metrics.solved import which_solved
from rollyard.analysis.viewer.api_records import Outcome, Page, RolloutLine
from rollyard.analysis.viewer.caches import PacedCache
from rollyard.analysis.viewer.field_values import ValueSelection
from rollyard.analysis.viewer.growing_index import Failed

Indexes = NDArray[np.intp]
"""Row indexes into a Table."""
SORTS = ("task", "repeat", "reward", "success", "tool_calls", "turns", "output_tokens", "seconds", "end", "agent")
MAX_LINES = 500
_MAX_KEPT = 6
"""Maximum number of sort orders, and of selections. Each takes 8 MB for a million rollouts."""
_ROUNDING = 1e-9
"""Tolerance of the reward filters, because rewards are sums. The histogram that links here uses the same value."""
NO_SELECTION = ValueSelection()
NO_ROW = -1
"""Offset of a rollout that has no row because all of its attempts failed."""
_NUMBERS = ("tool_calls", "turns", "output_tokens", "seconds")


class Query(BaseModel):
    """Query parameters of GET /api/runs/{run}/rollouts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sort: str = Field(default="task", max_length=500, pattern="[^-]")
    """The column or field to sort by; a leading `-` means descending order. Missing values come last in both orders."""
    where: str = Field(default="", max_length=2000)
    """An expression that the rollouts must meet, such as `reward < 0.5 and tool_calls > 3`."""
    columns: str = Field(default="", max_length=4000)
    """The columns to show, separated by commas; empty: the prompt and the fields that explain the reward."""
    task: int | None = None
    repeat: int | None = None
    outcome: Outcome | None = None
    success: bool | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    min_tool_calls: float | None = None
    max_tool_calls: float | None = None
    end: str | None = None
    agent: str | None = None
    q: str = Field(default="", max_length=1000)
    """Text that the row must contain."""
    finding: str = Field(default="", max_length=80)
    """The kind of a finding to which the rollouts must belong."""
    start: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=0, le=MAX_LINES)


def page_start(start: int, limit: int, total: int, searched: float = 1.0) -> int:
    """Return where the page that was asked for starts; that of the last page if `start` lies past the end.

    The end is only known when everything has been searched.
    """
    return start if start < total or limit == 0 or searched < 1 else max(total - 1, 0) // limit * limit


class Listing:
    """Provides the pages of one table. Thread-safe; in the worst case, two threads sort the same column."""

    def __init__(self, table: RolloutTable, columns: Columns) -> None:
        """`columns`: the measured rollouts of the table, in the same order, with `success` as in the table."""
        self.table = table
        self.columns = columns
        self.places = np.where(table.measured, np.cumsum(table.measured) - 1, -1)
        """The index of each rollout in `columns`; -1 if it is not measured."""
        self._orders = PacedCache[Indexes](_MAX_KEPT)
        self._selections = PacedCache[Indexes](_MAX_KEPT)
        self._ends = tuple(sorted(_names_in(table.end)))
        self._agents = tuple(sorted(_names_in(table.agent)))

    def page_of(self, indexes: Indexes, total: int, start: int = 0, searched: float = 1.0) -> Page:
        lines = [self.table.line(index) for index in indexes.tolist()]
        return Page(total=total, start=start, lines=lines, searched=searched, ends=self._ends, agents=self._agents)

    def select(
        self, query: Query, found: NDArray[np.int64] | None = None, selection: ValueSelection = NO_SELECTION
    ) -> Indexes:
        """Return the sorted indexes of the matching rollouts.

        `found` contains the byte offsets of the rows that contain the searched text, in ascending order. `selection`:
        the query's expression and sort key, evaluated over the table.
        """
        key = query.model_copy(update={"start": 0, "limit": 0, "columns": ""}).model_dump_json()
        version = f"{-1 if found is None else len(found)} {selection.version}"
        return self._selections.get((key, version), None, lambda: self._select(query, found, selection), final=True)

    def _select(self, query: Query, found: NDArray[np.int64] | None, selection: ValueSelection) -> Indexes:
        key = f"{query.sort} {selection.version if selection.ranks is not None else ''}"
        order = self._orders.get(key, None, lambda: _order(self.table, query.sort, selection.ranks), final=True)
        selected = self._mask(query)
        if selection.mask is not None:
            selected = selection.mask if selected is None else selected & selection.mask
        if found is not None:
            has = _among(self.table.offset, found)
            selected = has if selected is None else selected & has
        return order if selected is None else order[selected[order]]

    def _mask(self, query: Query) -> NDArray[np.bool_] | None:
        table = self.table
        # Comparisons with NaN are false, so missing values never match.
        tests: list[tuple[Any, Callable[[Any], NDArray[np.bool_]]]] = [
            (query.task, lambda task: table.task == _clamped(task)),
            (query.repeat, lambda repeat: table.repeat == _clamped(repeat)),
            (query.outcome, lambda outcome: table.measured == (outcome == "measured")),
            (query.success, lambda success: table.success == float(success)),
            (query.min_reward, lambda least: table.reward >= least - _ROUNDING),
            (query.max_reward, lambda most: table.reward <= most + _ROUNDING),
            (query.min_tool_calls, lambda least: table.tool_calls >= least),
            (query.max_tool_calls, lambda most: table.tool_calls <= most),
            (query.end, lambda end: _has_name(table.end, end)),
            (query.agent, lambda agent: _has_name(table.agent, agent)),
        ]
        masks = [test(value) for value, test in tests if value is not None]
        return np.asarray(np.logical_and.reduce(masks), bool) if masks else None


def _order(table: RolloutTable, sort: str, ranks: NDArray[np.float64] | None) -> Indexes:
    """Return the sort order. Rows with equal values remain sorted by (task, repeat). `ranks`: values to sort by, if
    they are not a column of the table.
    """
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if ranks is not None:
        return np.argsort(-ranks if descending else ranks, kind="stable")
    if name == "task":
        return np.argsort(-table.task, kind="stable") if descending else np.arange(len(table))
    values = _ranks(getattr(table, name)) if name in ("end", "agent") else getattr(table, name)
    return np.argsort(-values if descending else values, kind="stable")


def _ranks(column: CategoryColumn) -> NDArray[np.float64]:
    """Return each row's rank in alphabetical order; NaN for missing values."""
    ranks = np.empty(len(column.names) + 1)
    ranks[np.argsort(np.array(column.names, str))] = np.arange(len(column.names))
    ranks[-1] = np.nan
    return ranks[column.codes]


def _has_name(column: CategoryColumn, name: str) -> NDArray[np.bool_]:
    code = column.names.index(name) if name in column.names else -1 if name == "" else -2
    return np.asarray(column.codes == code)


def _names_in(column: CategoryColumn) -> set[str]:
    return {column.names[code] for code in np.unique(column.codes).tolist() if code >= 0}


def _among(offsets: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(found):
        return np.zeros(len(offsets), bool)
    indexes = np.minimum(np.searchsorted(found, offsets), len(found) - 1)
    return np.asarray(found[indexes] == offsets)


def _clamped(value: int) -> int:
    """Clamp to a range that fits in 64 bits, so that numpy can compare the value."""
    return max(min(value, 2**62), -1)


@dataclass(frozen=True)
class RolloutTable:
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
        low, high = self.of_task(task)
        index = low + int(np.searchsorted(self.repeat[low:high], repeat))
        return index if index < high and self.repeat[index] == repeat else None

    def is_measured(self, task: int, repeat: int) -> bool:
        index = self.find(task, repeat)
        return index is not None and bool(self.measured[index])

    def of_task(self, task: int) -> tuple[int, int]:
        """Return the range of a task's rollouts: the index of the first, and the index after the last."""
        low, high = np.searchsorted(self.task, [task, task + 1])
        return int(low), int(high)

    def line(self, index: int) -> RolloutLine:
        success = known(self.success[index])
        return RolloutLine(
            task=int(self.task[index]),
            repeat=int(self.repeat[index]),
            outcome="measured" if self.measured[index] else "failed",
            reward=known(self.reward[index]),
            success=None if success is None else success == 1,
            tool_calls=_integer(self.tool_calls[index]),
            turns=_integer(self.turns[index]),
            output_tokens=_integer(self.output_tokens[index]),
            seconds=known(self.seconds[index]),
            end=_name(self.end, index),
            agent=_name(self.agent, index),
        )


def table_of(columns: Columns, failed: Failed, threshold: float | None = None) -> RolloutTable:
    """Build the table from measured rows, rows without a reward, and `failed` attempts at rollouts that have no row.

    Rewards of at least `threshold` count as solved.
    """
    solved = which_solved(columns, threshold)[1]
    count = len(columns)
    measured = RolloutTable(
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


def _lost(columns: Columns) -> RolloutTable:
    """Return the rows without a reward, with each rollout's last row first."""
    lost = columns.unmeasured
    kind, agent = (CategoryColumn(column.codes[::-1], column.names) for column in (lost.kind, lost.agent))
    numbers = [getattr(lost, name)[::-1] for name in _NUMBERS]
    return _failed(lost.task[::-1], lost.repeat[::-1], lost.offset[::-1], kind, agent, *numbers)


def _failed_attempts(failed: Failed) -> RolloutTable:
    """Return the failed attempts, with each rollout's last attempt first."""
    last = failed.take(slice(None, None, -1))
    return _failed(last.task, last.repeat, np.full(len(last.task), NO_ROW), last.kind, last.agent)


def _failed(
    task: Ints, repeat: Ints, offset: Ints, kind: CategoryColumn, agent: CategoryColumn, *numbers: Floats
) -> RolloutTable:
    missing, measured = np.full(len(task), np.nan), np.zeros(len(task), bool)
    calls, turns, tokens, seconds = numbers or [missing] * len(_NUMBERS)
    return RolloutTable(task, repeat, offset, measured, missing, missing, calls, turns, tokens, seconds, kind, agent)


def _joined(parts: list[RolloutTable]) -> RolloutTable:
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
    return RolloutTable(**chosen)


def known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _integer(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


def _name(column: CategoryColumn, index: int) -> str:
    code = column.codes[index]
    return column.names[code] if code >= 0 else ""
