"""Filters, sorts and pages the rollout table, in milliseconds for a million rollouts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rollyard.services.metrics.loader.columns import CategoryColumn
from rollyard.services.viewer.api.api_records import Outcome, Page
from rollyard.services.viewer.index.table import Table

Places = NDArray[np.intp]
"""Indexes into a table."""
SORTS = ("task", "repeat", "reward", "success", "tool_calls", "turns", "output_tokens", "seconds", "end")
MOST_LINES = 500
_ROUNDING = 1e-9
"""Tolerance of reward filters, because rewards are sums. Equal to the tolerance of the histogram that links here."""
_CACHE_SIZE = 6
"""Number of cached orders and selections, 8 MB each for a million rollouts."""
T = TypeVar("T")


class Query(BaseModel):
    """The query of GET /api/runs/{run}/rollouts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sort: str = Field(default="task", pattern=f"^-?({'|'.join(SORTS)})$")
    """A leading `-` means descending. Missing values come last in both directions."""
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
    """Text to search in the row."""
    start: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=0, le=MOST_LINES)


class Listing:
    """Pages of one table. Thread-safe; at worst two threads sort the same column."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._orders = _LruCache[Places]()
        self._selections = _LruCache[Places]()
        self._ends = tuple(sorted(_used(table.end)))
        self._agents = tuple(sorted(_used(table.agent)))

    def page(self, query: Query, found: NDArray[np.int64] | None = None, searched: float = 1.0) -> Page:
        """Return the requested page. `found` holds the offsets of the rows with the searched text, ascending."""
        places = self.select(query, found)
        return self.page_of(places[query.start : query.start + query.limit], len(places), query.start, searched)

    def page_of(self, places: Places, total: int, start: int = 0, searched: float = 1.0) -> Page:
        """Return the rows at `places` as a page of `total`."""
        lines = [self.table.line(place) for place in places.tolist()]
        return Page(total=total, start=start, lines=lines, searched=searched, ends=self._ends, agents=self._agents)

    def select(self, query: Query, found: NDArray[np.int64] | None = None) -> Places:
        """Return the sorted indexes of the matching rollouts."""
        key = query.model_copy(update={"start": 0, "limit": 0}).model_dump_json()
        return self._selections.get(f"{key} {-1 if found is None else len(found)}", lambda: self._select(query, found))

    def _select(self, query: Query, found: NDArray[np.int64] | None) -> Places:
        order = self._orders.get(query.sort, lambda: _order(self.table, query.sort))
        passes = self._passing(query)
        if found is not None:
            has = _among(self.table.offset, found)
            passes = has if passes is None else passes & has
        return order if passes is None else order[passes[order]]

    def _passing(self, query: Query) -> NDArray[np.bool_] | None:
        table = self.table
        # Comparisons with NaN are false, so missing values match no bound.
        tests: list[tuple[Any, Callable[[Any], NDArray[np.bool_]]]] = [
            (query.task, lambda task: table.task == _clamped(task)),
            (query.repeat, lambda repeat: table.repeat == _clamped(repeat)),
            (query.outcome, lambda outcome: table.measured == (outcome == "measured")),
            (query.success, lambda success: table.success == float(success)),
            (query.min_reward, lambda least: table.reward >= least - _ROUNDING),
            (query.max_reward, lambda most: table.reward <= most + _ROUNDING),
            (query.min_tool_calls, lambda least: table.tool_calls >= least),
            (query.max_tool_calls, lambda most: table.tool_calls <= most),
            (query.end, lambda end: _named(table.end, end)),
            (query.agent, lambda agent: _named(table.agent, agent)),
        ]
        passing = [test(value) for value, test in tests if value is not None]
        return np.asarray(np.logical_and.reduce(passing), bool) if passing else None


class _LruCache(Generic[T]):
    """A small LRU cache."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the value of `key`, computed if missing."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > _CACHE_SIZE:
                self._values.popitem(last=False)
        return value


def _order(table: Table, sort: str) -> Places:
    """Return the sort order; ties stay ordered by (task, repeat)."""
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if name == "task":
        return np.argsort(-table.task, kind="stable") if descending else np.arange(len(table))
    values = _ranks(table.end) if name == "end" else getattr(table, name)
    return np.argsort(-values if descending else values, kind="stable")


def _ranks(words: CategoryColumn) -> NDArray[np.float64]:
    """Return alphabetical ranks; NaN for missing values."""
    ranks = np.empty(len(words.names) + 1)
    ranks[np.argsort(np.array(words.names, str))] = np.arange(len(words.names))
    ranks[-1] = np.nan
    return ranks[words.codes]


def _named(words: CategoryColumn, name: str) -> NDArray[np.bool_]:
    code = words.names.index(name) if name in words.names else -1 if name == "" else -2
    return np.asarray(words.codes == code)


def _used(words: CategoryColumn) -> set[str]:
    return {words.names[code] for code in np.unique(words.codes).tolist() if code >= 0}


def _among(offsets: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(found):
        return np.zeros(len(offsets), bool)
    places = np.minimum(np.searchsorted(found, offsets), len(found) - 1)
    return np.asarray(found[places] == offsets)


def _clamped(value: int) -> int:
    """Clamp to 64 bits, so that numpy can compare it."""
    return max(min(value, 2**62), -1)
