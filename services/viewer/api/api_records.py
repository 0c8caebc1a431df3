"""What the viewer's page is told: the answers of /api, frozen. Texts in them come out of rollouts and are hostile."""

from __future__ import annotations

from typing import Literal

from rollyard.services.charts.chart import Chart
from rollyard.services.metrics.comparison import Difference
from rollyard.services.metrics.profile_records import Profile
from rollyard.services.rollouts.replay import Replay
from rollyard.services.types import CollectionStatus, Json, Record

Outcome = Literal["measured", "failed"]
"""A rollout with a reward; or one that has none: a masked row, or one whose attempts all failed."""


class RunFileStatus(Record):
    """One rollout file, as far as it is read."""

    run: int
    """Its place among the files that were given, from 0."""
    name: str
    path: str
    size: int
    """Bytes."""
    indexed: int
    """Bytes whose rollouts can be seen."""
    measured: int
    """Rollouts with a reward among them."""
    failed: int
    """Rollouts without one."""
    torn: int
    """Bytes of an unfinished last line."""
    error: str = ""
    """Why it cannot be read further, or which lines of it are no rollouts and left out."""
    status: CollectionStatus | None = None
    """Of the collection that writes it, from X_status.json."""


class Overview(Record):
    """Every file that was opened. The page asks again while one of them grows."""

    title: str
    version: str
    """Of this program."""
    runs: list[RunFileStatus]


class Numbers(Record):
    """GET /api/runs/{run}/profile: the profile's numbers of what is read so far."""

    indexed: int
    """Bytes they are made of."""
    profile: Profile
    charts: list[Chart]


class RolloutLine(Record):
    """A rollout in the list."""

    task: int
    repeat: int
    outcome: Outcome
    reward: float | None
    success: bool | None
    """None where nothing says what solved is."""
    tool_calls: int | None
    turns: int | None
    output_tokens: int | None
    seconds: float | None
    """Of the whole episode."""
    end: str
    """`finish_reason`; of a failed one its failure kind."""
    agent: str


class Page(Record):
    """GET /api/runs/{run}/rollouts: a stretch of the list, after filters and sorting."""

    total: int
    """Rollouts that pass the filters; with a text search, those found so far."""
    start: int
    """Place of the first of `lines` among them."""
    lines: list[RolloutLine]
    searched: float = 1.0
    """Share of the file that a text search has gone through; the page asks again until it is 1."""
    ends: tuple[str, ...] = ()
    """Every value of `end` in the file, for the filter."""
    agents: tuple[str, ...] = ()


Speaker = Literal["system", "user", "reasoning", "answer", "call", "result", "other"]


class Tokens(Record):
    """One model call's tokens, where they are on record."""

    prompt: list[int]
    generated: list[int]
    log_probs: list[float]
    trained: bool
    """Generated tokens are what a trainer would learn from, those of the prompt are masked."""
    trace: Json | None
    """`token_trace`: its way, segment and break."""


class Event(Record):
    """One thing that was said in an episode, in order."""

    speaker: Speaker
    text: str
    """Words; of a call its arguments, pretty where they are JSON; of a result what the model read."""
    name: str = ""
    """Of the tool that is called or answers."""
    call: str = ""
    """What joins a result to its call."""
    turn: int = 0
    """Which model call wrote it, from 1; 0 before the first. A result has the turn of its call."""
    reward: float | None = None
    """What the world gave for this step, where its answer says."""
    tokens: Tokens | None = None
    """On the last event of a model call."""


class Attempt(Record):
    """A failed attempt at this rollout."""

    attempt: int
    kind: str
    server: str
    detail: str
    seconds: float
    when: float
    """Unix seconds."""


class RolloutView(Record):
    """GET /api/runs/{run}/rollouts/{task}/{repeat}: one rollout, to be read."""

    run: int
    line: RolloutLine
    events: list[Event]
    replay: Replay | None
    """Boards, where the world's folder can draw them."""
    charts: list[Chart]
    """Of its tokens, where they are on record."""
    facts: Json
    """What else the row says: everything but the conversation, small values only."""
    attempts: list[Attempt]
    previous: tuple[int, int] | None
    """(task, repeat) of the neighbours in the file's order of tasks."""
    next: tuple[int, int] | None


class TaskRollouts(Record):
    """GET /api/runs/{run}/tasks/{task}?start=&limit=: the repeats of a task, side by side; 64 at a time, no tokens."""

    run: int
    task: int
    stories: list[RolloutView]
    total: int = 0
    """Repeats in all."""
    start: int = 0
    """Place of the first of `stories` among them."""
    previous: int | None = None
    """The neighbouring tasks that have rollouts; None at either end of the file."""
    next: int | None = None


class TaskPair(Record):
    """A task in two runs."""

    task: int
    """Its index in the first run."""
    task_in_second: int
    """Its index in the second run, which may number the same task otherwise."""
    rewards: tuple[float | None, float | None]
    """Mean over the repeats."""
    solved: tuple[float | None, float | None]
    """Share of the repeats."""
    measured: tuple[int, int]


class Comparison(Record):
    """GET /api/compare?first=0&second=1: two runs side by side.

    `sort`: task, change (of the solve rate, or of the mean reward where solved means nothing), first, second (mean
    reward in that run), `-` before it for descending; `start`, `limit` as in the list.
    """

    runs: tuple[int, int]
    difference: Difference | None
    """None where the two share no task."""
    note: str
    total: int
    start: int
    tasks: list[TaskPair]
    charts: list[Chart]
