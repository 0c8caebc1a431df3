"""The records of /api responses. Texts from rollouts in them are untrusted."""

from __future__ import annotations

from typing import Literal

from rollyard.services.charts.chart import Chart
from rollyard.services.metrics.comparison import Difference
from rollyard.services.metrics.profile_records import Profile
from rollyard.services.rollouts.replay import Replay
from rollyard.services.types import CollectionStatus, Json, Record

Outcome = Literal["measured", "failed"]
"""`measured` rollouts have a reward. `failed` ones have none: masked rows, or rollouts whose attempts all failed."""


class RunFileStatus(Record):
    """The state of one rollout file."""

    run: int
    """Index among the opened files, from 0."""
    name: str
    path: str
    size: int
    """Bytes."""
    indexed: int
    """Bytes whose rollouts are listed."""
    measured: int
    """Listed rollouts with a reward."""
    failed: int
    """Listed rollouts without a reward."""
    torn: int
    """Bytes of an incomplete last line."""
    error: str = ""
    """Why the file cannot be read further, or which invalid lines are excluded."""
    status: CollectionStatus | None = None
    """The status of the collection that writes the file, from X_status.json."""


class Overview(Record):
    """Every opened file. The page polls while one of them grows."""

    title: str
    version: str
    """Version of Rollyard."""
    runs: list[RunFileStatus]


class Numbers(Record):
    """GET /api/runs/{run}/profile: the metrics of the rows read so far."""

    indexed: int
    """Bytes that the metrics cover."""
    profile: Profile
    charts: list[Chart]


class RolloutLine(Record):
    """A row of the rollout table."""

    task: int
    repeat: int
    outcome: Outcome
    reward: float | None
    success: bool | None
    """None if "solved" is undefined."""
    tool_calls: int | None
    turns: int | None
    output_tokens: int | None
    seconds: float | None
    """Duration of the entire episode."""
    end: str
    """`finish_reason`, or the failure kind of a failed rollout."""
    agent: str


class Page(Record):
    """GET /api/runs/{run}/rollouts: a page of the filtered and sorted list."""

    total: int
    """Rollouts that match the filters; with a text search, those found so far."""
    start: int
    """Index of the first of `lines`."""
    lines: list[RolloutLine]
    searched: float = 1.0
    """Share of the file that was searched; the page polls until it is 1."""
    ends: tuple[str, ...] = ()
    """Every value of `end` in the file, for the filter."""
    agents: tuple[str, ...] = ()


Speaker = Literal["system", "user", "reasoning", "answer", "call", "result", "other"]


class Tokens(Record):
    """The recorded tokens of one model call."""

    prompt: list[int]
    generated: list[int]
    log_probs: list[float]
    trained: bool
    """Whether the generated tokens are trained on. Prompt tokens are always masked."""
    trace: Json | None
    """`token_trace`: its backend (`way`), segment and prefix mismatch (`break`)."""


class Event(Record):
    """One event of an episode's conversation."""

    speaker: Speaker
    text: str
    """The text of a message, the formatted arguments of a call, or the result as the model read it."""
    name: str = ""
    """Name of the tool."""
    call: str = ""
    """Id that links a result to its call."""
    turn: int = 0
    """Number of the model call, from 1; 0 before the first. A result has the turn of its call."""
    reward: float | None = None
    """Reward of this step, if the tool result contains one."""
    tokens: Tokens | None = None
    """Set on the last event of a model call."""


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
    """GET /api/runs/{run}/rollouts/{task}/{repeat}: one rollout."""

    run: int
    line: RolloutLine
    events: list[Event]
    replay: Replay | None
    """Boards, if the environment's folder has a replay.py that can draw them."""
    charts: list[Chart]
    """Charts of the recorded tokens."""
    facts: Json
    """The row's fields except the conversation, with long values shortened."""
    attempts: list[Attempt]
    previous: tuple[int, int] | None
    """(task, repeat) of the neighbours in the file's order of tasks."""
    next: tuple[int, int] | None


class TaskRollouts(Record):
    """GET /api/runs/{run}/tasks/{task}?start=&limit=: the repeats of a task, at most 64 per request, without tokens."""

    run: int
    task: int
    stories: list[RolloutView]
    total: int = 0
    """Total number of repeats."""
    start: int = 0
    """Index of the first of `stories`."""
    previous: int | None = None
    """The neighbouring tasks that have rollouts; None at the ends."""
    next: int | None = None


class TaskPair(Record):
    """A task in two runs."""

    task: int
    """The task's index in the first run."""
    task_in_second: int
    """The task's index in the second run, which may differ."""
    rewards: tuple[float | None, float | None]
    """Mean over the repeats."""
    solved: tuple[float | None, float | None]
    """Share of the repeats."""
    measured: tuple[int, int]


class Comparison(Record):
    """GET /api/compare?first=0&second=1: the comparison of two runs.

    `sort`: task, change (of the solve rate, or of the mean reward if "solved" is undefined), first or second (mean
    reward in that run), with a leading `-` for descending order; `start`, `limit` as in the list.
    """

    runs: tuple[int, int]
    difference: Difference | None
    """None if the runs have no common task."""
    note: str
    total: int
    start: int
    tasks: list[TaskPair]
    charts: list[Chart]
