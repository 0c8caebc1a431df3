"""Records of the responses about failed attempts. They contain untrusted text from rollouts."""

from __future__ import annotations

from pydantic import Field

from rollyard.analysis.charts.chart import Chart
from rollyard.analysis.viewer.api.api_records import Attempt, Event
from rollyard.records.rollouts.replay import Replay
from rollyard.records.types import Json, Record


class AttemptLine(Attempt):
    """A row of the list of failed attempts."""

    task: int
    repeat: int
    at: int
    """Position among the failed attempts at this rollout, which is part of the address of its page."""


class AttemptPage(Record):
    """GET /api/runs/{run}/attempts?start=&limit=&kind=&finding=: failed attempts, latest first."""

    total: int
    start: int
    lines: list[AttemptLine]
    kinds: dict[str, int]
    """Failure kind -> number of attempts in the whole file."""


class TurnTime(Record):
    """How long a turn took."""

    turn: int
    model_s: float | None
    """None if the model had not answered."""
    tools_s: float


class Sequel(Record):
    """GET /api/runs/{run}/sequel/{task}/{repeat}: what has become of a rollout so far."""

    measured: bool
    """Whether the rollout has a reward."""
    attempts: int
    """Number of failed attempts."""


class AttemptView(Record):
    """GET /api/runs/{run}/attempts/{task}/{repeat}/{at}: one failed attempt."""

    run: int
    line: AttemptLine
    events: list[Event]
    """What was said; the last event, `failure`, is where it failed. Empty if nothing is known."""
    replay: Replay | None
    turns: list[TurnTime] = Field(default_factory=list)
    charts: list[Chart] = Field(default_factory=list)
    """Charts of the recorded tokens."""
    note: str
    """What is missing, and why."""
    facts: Json = Field(default_factory=dict)
    """The fields of the row, with long values shortened."""
    others: int
    """Number of failed attempts at the same rollout."""
    measured: bool
    """Whether another attempt at the rollout has a reward."""
