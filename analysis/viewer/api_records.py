"""Records of /api responses that several modules make. They contain untrusted text from rollouts."""

from __future__ import annotations

from typing import Any, Literal

from rollyard.analysis.charts.charts import Chart
from rollyard.analysis.findings.detector import Finding
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.records.replay import Replay
from rollyard.records.rewards import Role
from rollyard.records.types import CollectionStatus, Json, Record

Outcome = Literal["measured", "failed"]
"""`measured` rollouts have a reward. `failed` rollouts have none: the row is masked, or all attempts failed."""
Speaker = Literal["system", "user", "reasoning", "answer", "call", "result", "other", "failure"]
"""`failure` is the end of a failed attempt."""


class RunFileStatus(Record):
    run: int
    """Index of the file among the opened files, counted from 0."""
    name: str
    path: str
    absolute_path: str = ""
    """The path under which a collection on this host reports the file to its head."""
    size: int
    indexed: int
    """Number of bytes of the file whose rollouts are listed."""
    measured: int
    failed: int
    torn: int
    """Number of bytes in an incomplete last line."""
    error: str = ""
    """Why the file cannot be read any further, or which invalid lines are excluded."""
    status: CollectionStatus | None = None
    """Status of the collection that is writing the file, from X_status.json."""


class TrainingStatus(Record):
    """The state of a training run. Files are runs with fixed numbers: 2 x step for the rollouts of a step, and
    2 x step + 1 for the evaluation after it. They are opened when a page asks for them.
    """

    name: str
    path: str
    state: str
    """How the last start ended; empty while it runs, or if it was killed."""
    facts: dict[str, str]
    """What run.json says about the run."""
    revision: int
    """Changes with every new line of metrics.jsonl."""
    steps: int
    last_step: int | None
    updated: float | None
    """Unix time of the last line of metrics.jsonl."""
    rollouts: list[int]
    evaluations: list[int]
    token_pairs: bool = False
    """Whether log-probabilities of engine and trainer are recorded for some step."""
    collecting: CollectionStatus | None = None


class Overview(Record):
    """All opened files. The page polls this while one of them is growing."""

    title: str
    version: str
    runs: list[RunFileStatus]
    training: TrainingStatus | None = None
    """The training run whose folder was opened; None if files were."""
    series: bool = False
    """Whether the files are the steps of a series, whose steps are known."""


class Numbers(Record):
    """GET /api/runs/{run}/profile: the metrics of the rows read so far."""

    indexed: int
    profile: Profile
    charts: list[Chart]


class RolloutLine(Record):
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
    end: str
    """Why the episode ended (`finish_reason`), or the failure kind of a failed rollout."""
    agent: str


class ColumnHead(Record):
    path: str
    """The field as expressions name it, or `(prompt)`."""
    label: str
    role: Role | None = None
    """The role of a field that explains the reward; None for any other field."""


class VerdictValue(Record):
    path: str
    label: str
    role: Role
    value: Any


class Snippet(Record):
    """The first part of a rollout that contains the searched text, with some text around it."""

    event: int | None
    """Index of the event in the conversation; None if the text is only in another part of the row."""
    turn: int
    """The event's turn; 0 in the prompt."""
    place: str
    """The event's speaker, or the key of the row."""
    name: str
    """The tool of a call or a result, else ''."""
    before: str
    match: str
    after: str
    others: int


class Page(Record):
    """GET /api/runs/{run}/rollouts: a page of the filtered and sorted list."""

    total: int
    """Number of rollouts that match the filters. During a text search, only those found so far are counted."""
    start: int
    lines: list[RolloutLine]
    searched: float = 1.0
    """Share of the file that has been searched. The page polls until it is 1."""
    ends: tuple[str, ...] = ()
    """All values of `end` in the file, which the filter offers."""
    agents: tuple[str, ...] = ()
    columns: tuple[ColumnHead, ...] = ()
    """The columns of `cells`: the requested ones that are not in `lines`."""
    cells: tuple[tuple[Any, ...], ...] = ()
    """The values of each line, in the order of `columns`; long ones are shortened."""
    snippets: tuple[Snippet | None, ...] = ()
    """What the searched text matches in each line; empty without a text search."""
    finding: Finding | None = None
    """The finding whose rollouts are listed, once it is known."""


class Tokens(Record):
    prompt: list[int]
    generated: list[int]
    """Empty if only texts and log-probabilities are recorded."""
    log_probs: list[float]
    texts: list[str]
    """The text of each generated token; empty if unknown. A character whose bytes are spread over several tokens is the
    text of the last of them, and the others have an empty text."""
    alternatives: list[list[tuple[str, float]]]
    """For each generated token, the most likely tokens with their log-probabilities, if they are recorded."""
    trained: bool
    """Whether the generated tokens are trained on. Prompt tokens are always masked."""
    trace: Json | None
    """The item's `token_trace`: its token backend (`way`), segment and prefix mismatch (`break`)."""


class Event(Record):
    speaker: Speaker
    text: str
    """The text of a message, the formatted arguments of a call, or the result that the model received."""
    name: str = ""
    """Name of the tool, or a label such as `summary`."""
    call: str = ""
    turn: int = 0
    """Number of the model call, counted from 1; 0 before the first call. A result has the same number as its call."""
    reward: float | None = None
    tokens: Tokens | None = None
    """The recorded tokens of a model call, which are only set on its last event."""


class Attempt(Record):
    attempt: int
    kind: str
    server: str
    detail: str
    seconds: float
    when: float
    has_conversation: bool = False
    """Whether it is recorded what had been said until then."""


class RolloutView(Record):
    """GET /api/runs/{run}/rollouts/{task}/{repeat}: one rollout."""

    run: int
    line: RolloutLine
    events: list[Event]
    replay: Replay | None
    """Boards drawn by an environment's replay.py, if one supports this row."""
    charts: list[Chart]
    verdict: tuple[VerdictValue, ...] = ()
    facts: Json
    """All fields of the row except the conversation, with long values shortened."""
    attempts: list[Attempt]
    previous: tuple[int, int] | None
    """The (task, repeat) of the neighbouring rollouts, in task order; None at either end."""
    next: tuple[int, int] | None
