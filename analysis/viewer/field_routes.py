"""The fields of rows as routes: which there are, whether an expression is valid, and how often each value occurs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Response
from fastapi import Query as Parameters
from pydantic import Field

from rollyard.analysis.metrics.columns import Floats, Ints
from rollyard.analysis.metrics.profile import histogram
from rollyard.analysis.metrics.profile_records import Bin
from rollyard.analysis.viewer.caches import Identity
from rollyard.analysis.viewer.fields import shortened
from rollyard.analysis.viewer.responses import json_response
from rollyard.analysis.viewer.rollout_list import Query
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.analysis.viewer.untrusted_values import sanitize
from rollyard.records.expression_parser import MAX_LENGTH, parse_field
from rollyard.records.expressions import Column, Kind
from rollyard.records.types import Record

_NAME = Field(min_length=1, max_length=500)
MAX_VALUES = 50
MANY = 20
"""Numbers with more different values are shown as a histogram."""
LISTS = ("labels", "annotators")
"""Fields of notes whose values are lists of short texts."""


class FacetValue(Record):
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
    distinct: int
    values: list[FacetValue]
    """The most frequent values, at most 50; empty for numbers with many different values."""
    low: float | None = None
    median: float | None = None
    high: float | None = None
    histogram: tuple[Bin, ...] = ()


class FacetQuery(Query):
    """Query parameters of GET /api/runs/{run}/facet: a field, and those of the list."""

    key: str = _NAME


def field_router(find: Callable[[int], RunFile]) -> APIRouter:
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

    return router


def facet_of(run: RunFile, query: Query, key: str) -> Facet:
    """Return how often each value of the field occurs among the rollouts that the query selects.

    Raises ExpressionError if `key` is not a field, or if the query is invalid.
    """
    listing, indexes, searched = run.select(query.model_copy(update={"sort": "task"}))
    column, read = run.fields.values.named(listing.columns, run.listed, key)
    searched = min(searched, read)

    def make() -> Facet:
        places = listing.places[np.sort(indexes)]
        return _facet(column.take(places[places >= 0]), key)

    version = Identity(column), Identity(indexes)
    kept: Facet = run.fields.answers.get(("facet", key, query), version, make, final=searched >= 1)
    return kept.model_copy(update={"searched": searched})


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


def _facet_of_items(values: Column, key: str) -> Facet:
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
