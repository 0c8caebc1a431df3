"""Defines the records of fields, facets and groups. They contain untrusted text from rollouts."""

from __future__ import annotations

from typing import Any, Literal

from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.profile_records import Bin
from rollyard.records.types import Record
from rollyard.records.verdict_fields import Role

Kind = Literal["number", "text", "true or false", "list", "object", "mixed"]


class ColumnHead(Record):
    """A column of the list whose values are in `Page.cells`."""

    path: str
    """The field as expressions name it, or `(prompt)`."""
    label: str
    role: Role | None = None
    """The role of a field that explains the reward; None for any other field."""


class VerdictValue(Record):
    """A field that explains the reward of one rollout."""

    path: str
    label: str
    role: Role
    value: Any


class KeyInfo(Record):
    """A field that rows have."""

    path: str
    """The field as expressions name it."""
    kind: Kind
    share: float
    """Share of the sampled rows that have it."""
    example: str


class Keys(Record):
    """GET /api/runs/{run}/keys: the fields of the file's rows, found in a sample of them."""

    computed: list[str]
    """Fields that the viewer computes for every rollout, and those that it can compute from the sampled rows."""
    keys: list[KeyInfo]
    sampled: int
    """Number of rows in the sample."""


class ExpressionCheck(Record):
    """GET /api/runs/{run}/expression?text=: whether a text is an expression over the file's rows."""

    error: str
    """What is wrong with it, and what was expected; empty if it is valid."""
    hint: str = ""
    """A field that no sampled row has, and similar ones. The expression is valid: a rare field may be in other rows."""


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
