"""The fields of rows as routes: which there are, whether an expression is valid, and how often each value occurs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Response
from fastapi import Query as Parameters
from pydantic import Field

from rollyard.services.expressions.column import Column, Kind
from rollyard.services.expressions.parse import MAX_LENGTH, parse_field
from rollyard.services.metrics.datasets import scales
from rollyard.services.metrics.estimate import Estimate
from rollyard.services.metrics.estimators import clustered_mean
from rollyard.services.metrics.loader.columns import Columns, Floats, Ints, chosen
from rollyard.services.metrics.profile import histogram
from rollyard.services.metrics.profile_records import Bin
from rollyard.services.metrics.reward_scale import why_not_comparable
from rollyard.services.types import Record
from rollyard.services.viewer.caches import Identity
from rollyard.services.viewer.fields import shortened
from rollyard.services.viewer.json_responses import json_response
from rollyard.services.viewer.rollout_list import Indexes, Listing, Query, page_start
from rollyard.services.viewer.run_file import RunFile
from rollyard.services.viewer.untrusted_values import sanitize

_NAME = Field(min_length=1, max_length=500)
MAX_VALUES = 50
"""Maximum number of values of a facet."""
MANY = 20
"""Numbers with more different values are shown as a histogram."""
LISTS = ("labels", "annotators")
"""Fields of notes whose values are lists of short texts."""
SORTS = ("value", "rollouts", "reward", "solved")


class FacetValue(Record):
    """A value of a field, and how many rollouts have it."""

    value: Any
    where: str
    """An expression for the rollouts with this value; empty if none exists, as for lists."""
    rollouts: int


class Facet(Record):
    """GET /api/runs/{run}/facet?key=: the values of a field over the rollouts of the list."""

    key: str
    searched: float
    """Share of the file that has been read for this field. The page polls until it is 1."""
    rollouts: int
    """Number of measured rollouts that the list's filters select."""
    missing: int
    """Number of them without a value."""
    distinct: int
    values: list[FacetValue]
    """The most frequent values, at most 50; empty for numbers with many different values."""
    low: float | None = None
    median: float | None = None
    high: float | None = None
    histogram: tuple[Bin, ...] = ()
    """For numbers."""


class Group(Record):
    """The measured rollouts of the list that have the same value of a field."""

    value: Any
    where: str
    """An expression for these rollouts; empty if none exists."""
    rollouts: int
    tasks: int
    reward: Estimate | None
    """Mean reward; its interval is clustered by task. None if rewards of different scales would be averaged."""
    solved: Estimate | None
    """Share of solved rollouts; None if "solved" is undefined."""


class Groups(Record):
    """GET /api/runs/{run}/groups?by=: the rollouts of the list, grouped by a field."""

    by: str
    searched: float
    total: int
    """Number of groups."""
    start: int
    groups: list[Group]


class FacetQuery(Query):
    """Query parameters of GET /api/runs/{run}/facet: a field, and those of the list."""

    key: str = _NAME


class GroupQuery(Query):
    """Query parameters of GET /api/runs/{run}/groups: a field, and those of the list."""

    by: str = _NAME
    order: str = Field(default="-rollouts", pattern=f"^-?({'|'.join(SORTS)})$")
    """What to sort the groups by."""


def field_router(find: Callable[[int], RunFile]) -> APIRouter:
    """Return the routes. `find` returns a run by its number."""
    router = APIRouter(prefix="/api/runs/{run}")

    @router.get("/keys")
    async def keys(run: int) -> Response:
        return await json_response(lambda: find(run).fields.keys(find(run).listing.columns))

    @router.get("/expression")
    async def expression(run: int, text: Annotated[str, Parameters(max_length=4000)]) -> Response:
        return await json_response(lambda: find(run).fields.check(find(run).listing.columns, text))

    @router.get("/facet")
    async def facet(run: int, query: Annotated[FacetQuery, Parameters()]) -> Response:
        return await json_response(lambda: facet_of(find(run), query, query.key))

    @router.get("/groups")
    async def groups(run: int, query: Annotated[GroupQuery, Parameters()]) -> Response:
        return await json_response(lambda: groups_of(find(run), query, query.by, query.order))

    return router


Answer = TypeVar("Answer", Facet, Groups)


def facet_of(run: RunFile, query: Query, key: str) -> Facet:
    """Return how often each value of the field occurs among the rollouts that the query selects.

    Raises ExpressionError if `key` is not a field, or if the query is invalid.
    """
    chosen = _selected(run, query, key)
    return _answered(run, ("facet", key, query), chosen, lambda: _facet(chosen.column.take(chosen.places), key))


def _facet(values: Column, key: str) -> Facet:
    if key in LISTS:
        return _facet_of_items(values, key)
    codes, names = _coded(values)
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    numbers = _numbers(values)
    shown = order[:MAX_VALUES] if len(names) <= MANY or not len(numbers) else order[:0]
    return Facet(
        key=key,
        searched=0.0,
        rollouts=len(values),
        missing=int((codes < 0).sum()),
        distinct=len(names),
        values=[
            FacetValue(value=shortened(names[at]), where=condition(key, names[at]), rollouts=int(counts[at]))
            for at in shown.tolist()
        ],
        low=float(numbers.min()) if len(numbers) else None,
        median=float(np.median(numbers)) if len(numbers) else None,
        high=float(numbers.max()) if len(numbers) else None,
        histogram=tuple(histogram(numbers)) if len(numbers) else (),
    )


def groups_of(run: RunFile, query: Query, by: str, order: str = "-rollouts") -> Groups:
    """Return the rollouts that the query selects, grouped by a field. `order`: one of SORTS, `-` first for descending.

    Means, shares and their intervals are computed as for a report on the group. Raises as `facet_of` does.
    """
    chosen = _selected(run, query, by)
    return _answered(run, ("groups", by, order, query), chosen, lambda: _groups(run, chosen, query, by, order))


def _groups(run: RunFile, chosen: _Selected, query: Query, by: str, order: str) -> Groups:
    places = chosen.places
    codes, names = _coded(chosen.column.take(places))
    if (codes < 0).any():
        codes, names = np.where(codes < 0, len(names), codes), [*names, None]
    columns, solved = chosen.listing.columns, _solved(chosen.listing)
    by_code = np.argsort(codes, kind="stable")  # places stay ascending within a group, so tasks stay adjacent
    counts = np.bincount(codes, minlength=len(names))
    ends = np.cumsum(counts)
    members = [places[by_code[end - count : end]] for count, end in zip(counts.tolist(), ends.tolist(), strict=True)]
    outcomes = columns.reward if order.endswith("reward") or solved is None else solved
    ranks = _ranks(order.removeprefix("-"), names, counts, codes, outcomes[places])
    sorted_groups = np.argsort(-ranks if order.startswith("-") else ranks, kind="stable")
    mixed = bool(len(columns)) and bool(why_not_comparable(scales(columns)))
    start = page_start(query.start, query.limit, len(names), chosen.searched)
    return Groups(
        by=by,
        searched=0.0,
        total=len(names),
        start=start,
        groups=[
            _group(by, names[at], members[at], columns, solved, mixed)
            for at in sorted_groups[start : start + query.limit].tolist()
        ],
    )


def _facet_of_items(values: Column, key: str) -> Facet:
    """Return how many rollouts have each item of a list. A rollout with several items counts for each of them."""
    lists = values.objects()
    counts = Counter(item for items in lists for item in items or ())
    return Facet(
        key=key,
        searched=0.0,
        rollouts=len(values),
        missing=sum(not items for items in lists),
        distinct=len(counts),
        values=[
            FacetValue(value=item, where=f"{orjson.dumps(item).decode()} in {key}", rollouts=count)
            for item, count in counts.most_common(MAX_VALUES)
        ],
    )


def condition(key: str, value: Any) -> str:
    """Return an expression for the rollouts whose field `key` has this value; empty if there is none."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, list | dict) for one in value)):
        return ""
    if isinstance(value, float) and math.isinf(value):
        literal = "1e999" if value > 0 else "-1e999"
    else:
        literal = "null" if value is None else orjson.dumps(value).decode()
    text = f"{parse_field(key)} == {literal}"
    return text if len(text) <= MAX_LENGTH // 2 else ""


class _Selected(NamedTuple):
    """A field's values over all measured rollouts, and which of them the query selects."""

    listing: Listing
    indexes: Indexes
    column: Column
    searched: float
    """Share of the file that has been read."""

    @property
    def places(self) -> Ints:
        """The ascending indexes of the selected rollouts in the column."""
        places = self.listing.places[np.sort(self.indexes)]
        return places[places >= 0]


def _selected(run: RunFile, query: Query, name: str) -> _Selected:
    listing, indexes, searched = run.select(query.model_copy(update={"sort": "task"}))
    values, read = run.fields.column(listing.columns, run.listed, name)
    return _Selected(listing, indexes, values, min(searched, read))


def _answered(run: RunFile, key: Hashable, chosen: _Selected, make: Callable[[], Answer]) -> Answer:
    """Return the answer, which may be based on fewer rows than have been read while the file is being read."""
    version = Identity(chosen.column), Identity(chosen.indexes)
    kept: Answer = run.fields.answers.get(key, version, make, final=chosen.searched >= 1)
    return kept.model_copy(update={"searched": chosen.searched})


def _solved(listing: Listing) -> Floats | None:
    table = listing.table
    solved = table.success[table.measured]
    return None if not len(solved) or np.isnan(solved).all() else solved


def _coded(values: Column) -> tuple[Ints, list[Any]]:
    """Return the code of each value, -1 if missing, and the distinct values by code."""
    if values.numeric:
        known, inverse = np.unique(values.values[~values.missing], return_inverse=True)
        codes = np.full(len(values), -1, np.int64)
        codes[~values.missing] = inverse
        shown = known.tolist()
        if values.kind is Kind.TRUTHS:
            return codes, [value == 1 for value in shown]
        return codes, [int(value) if abs(value) < 2**53 and value.is_integer() else value for value in shown]
    known_values: dict[Any, int] = {}
    names: list[Any] = []
    codes = np.full(len(values), -1, np.int64)
    for at, value in enumerate(values.values):
        if value is None:
            continue
        value = int(value) if type(value) is float and value.is_integer() else value  # as in a column of numbers
        is_infinite = type(value) is float and math.isinf(value)
        shown = value if is_infinite else sanitize(value)  # JSON has no infinite numbers
        is_key = is_infinite or isinstance(value, str)
        key = value if is_key else orjson.dumps(shown, option=orjson.OPT_NON_STR_KEYS)
        code = known_values.setdefault(key, len(names))
        if code == len(names):
            names.append(shown)
        codes[at] = code
    return codes, names


def _numbers(values: Column) -> Floats:
    """Return the finite numbers of a column that has no texts, also if some are integers that no float equals."""
    if values.kind is Kind.NUMBERS:
        return np.asarray(values.values[np.isfinite(values.values)], np.float64)
    found = [] if values.numeric else [value for value in values.values if value is not None]
    if all(type(value) in (int, float) for value in found):
        with suppress(OverflowError):
            numbers = np.array(found, np.float64)
            return np.asarray(numbers[np.isfinite(numbers)], np.float64)
    return np.empty(0)


def _ranks(order: str, names: Sequence[Any], counts: Ints, codes: Ints, outcomes: Floats) -> Floats:
    if order == "rollouts":
        return counts.astype(float)
    if order == "value":
        ranks = np.empty(len(names))
        ranks[sorted(range(len(names)), key=lambda at: _key(names[at]))] = np.arange(len(names))
        return ranks
    return np.asarray(np.bincount(codes, outcomes, len(names)) / counts, np.float64)


def _key(value: Any) -> tuple[int, float, str]:
    """Sort numbers first, then texts, then missing values."""
    if isinstance(value, int | float):
        return 0, value, ""
    return (2, 0, "") if value is None else (1, 0, str(value))


def _group(by: str, value: Any, rows: Ints, columns: Columns, solved: Floats | None, mixed: bool) -> Group:
    starts = np.flatnonzero(np.diff(columns.task[rows], prepend=-1))
    averaged = True
    if mixed:
        mask = np.zeros(len(columns), bool)
        mask[rows] = True
        averaged = not why_not_comparable(scales(chosen(columns, mask)))
    return Group(
        value=shortened(value),
        where=condition(by, value),
        rollouts=len(rows),
        tasks=len(starts),
        reward=clustered_mean(columns.reward[rows], starts) if averaged else None,
        solved=None if solved is None else clustered_mean(solved[rows], starts, is_share=True),
    )
