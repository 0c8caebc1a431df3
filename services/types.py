"""Everything that crosses a wire or lands in a file, in the order it is made. Frozen; nothing here acts.

Conversations themselves are OpenAI Responses items (`openai.types.responses`) and stay plain JSON objects:
unknown fields survive, and nothing is validated twice.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

Json = dict[str, Any]
"""A JSON object as orjson reads it."""


TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "token_trace")
"""What the last item of a model call carries for training: NeMo Gym's three, and where they come from."""

WORLD_PATHS = frozenset(
    {
        "seed_session",
        "verify",
        "close",
        "reset",
        "aggregate_metrics",
        "tools",
        "health",
        "ready",
        "metrics",
        "docs",
        "openapi.json",
    }
)
"""Paths of a world that are not the model's to call, and names that no tool may take."""


class Record(BaseModel):
    """Base of what is written or sent: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Problem(BaseModel):
    """An error answer (RFC 9457). It names the server where the failure began and crosses hops unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = "about:blank"
    """`urn:rollyard:<failure kind>`."""
    title: str = ""
    status: int
    """HTTP status of this answer."""
    detail: str = ""
    """One sentence for the person who reads the record."""
    instance: str = ""
    """The request path that failed."""
    server: str = ""
    """Name of the server where it began."""
    upstream_status: int | None = None
    """Status of the foreign endpoint behind that server, when there is one."""
    code: str | int | None = None
    """One word for programs, under OpenAI's name: the endpoint's own where it gave one, else the failure kind."""

    @model_validator(mode="before")
    @classmethod
    def _without_message(cls, read: Any) -> Any:
        return {key: value for key, value in read.items() if key != "message"} if isinstance(read, dict) else read

    @computed_field
    def message(self) -> str:
        """`detail` again, under the name by which OpenAI's clients show it."""
        return self.detail


class ServerRef(Record):
    """How one server's settings name another."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = ""
    """The family; the name alone decides."""
    name: str


class AccessRules(Record):
    """Who may call the servers of a run that has no token, besides its own user and root."""

    other_users: bool = False
    """Every user of the machine."""
    hosts: tuple[str, ...] = ()
    """Further names by which the servers may be called, as those of a proxy."""


class Keys(Record):
    """What the members of one run share; made once by whoever starts it, never printed, never served."""

    run_id: str
    """Sent with every hop, so that nobody talks to a stranger on the same port."""
    secret: str = Field(repr=False)
    """Signs session cookies and admits servers to the head."""
    token: str | None = Field(default=None, repr=False)
    """Bearer token asked of every request when a server is bound beyond loopback."""
    access: AccessRules = AccessRules()


class Launch(Record):
    """All that one server process is told, through its standard input."""

    name: str
    instance: str
    """Unique within the run: name, replica and start count."""
    family: str
    implementation: str
    folder: str
    """The server's own folder, absolute."""
    settings: Json
    keys: Keys
    head_url: str
    parent_pid: int
    """The process whose death ends this one; 0 when it lives on another machine."""
    advertise: str | None = None
    """Host name that others reach this machine by, where it is not the address that is bound."""
    log_folder: str | None = None
    """Where the run's logs are; on another machine it may not exist."""
    check_only: bool = False
    """Make the server, look for what would stop its start, and end."""


class ServerCode(Record):
    """The code that a server process has loaded, by content. See `services/config/server_code`."""

    digest: str
    """Of all that follows."""
    files: dict[str, str]
    """Path below the folder that holds it -> short digest of its content."""
    packages: dict[str, str]
    """Package that the server declares -> installed version."""


class CodeSources(Record):
    """Where the files of a `ServerCode` are on the machine of its server."""

    paths: dict[str, str]
    """Name in `ServerCode.files` -> absolute path."""
    folders: dict[str, str]
    """Folders in which every code file counts: name, as it begins those of their files -> absolute path."""


class Registration(Record):
    """A server process announces where it listens; it is not ready yet."""

    name: str
    instance: str
    url: str
    pid: int
    ready: bool = False
    phase: str = ""
    """What its start is doing."""
    code: ServerCode | None = None
    """None: the process does not report its code."""
    sources: CodeSources | None = None


class Heartbeat(Record):
    """Sent every few seconds by each instance; the head drops an instance that stays silent."""

    instance: str
    requests: int
    in_flight: int
    sessions: int
    phase: str = ""
    """What it is mending, while it is ready all the same."""


class ServerInstance(Record):
    """One running instance, in the format of NeMo Gym's `/server_instances` with our counters beside it."""

    process_name: str
    """Unique name of the instance."""
    server_type: str
    """The family."""
    name: str
    """The implementation, as in NeMo Gym's listing; `server_name` is what others call it by."""
    server_name: str
    dir_path: str
    entrypoint: str
    host: str | None
    port: int | None
    pid: int | None
    config_path: str
    url: str | None
    status: Literal["starting", "success", "timeout", "restarting"]
    """`success` means ready, in NeMo Gym's word."""
    start_time: float
    """Unix seconds."""
    uptime_seconds: float
    ready: bool
    requests: int
    requests_per_s: float = 0.0
    """Over its heartbeats of the last ten seconds."""
    in_flight: int
    sessions: int
    restarts: int
    phase: str = ""
    """What its start is doing, or what it is mending."""
    changed_files: list[str] = []
    """Files of its code that changed on disk since it loaded them, as `ServerCode.files` names them."""


class Directory(Record):
    """Where the ready instances of every server of the run listen."""

    run_id: str
    servers: dict[str, list[str]]
    """Server name -> base URLs of its ready instances (empty: known, none ready)."""
    quiet: dict[str, list[str]] = {}
    """Server name -> base URLs of instances whose heartbeats are late: too busy, perhaps. Their sessions go on."""
    instances: list[str] = []
    """Every registered instance, ready, silent or neither; one whose process has ended is on it no more."""
    families: dict[str, str]
    """Server name -> family."""
    start_timeouts_s: dict[str, float] = {}
    """Server name -> how long it may take to get ready, where that is its own setting: worth waiting for."""
    settings: Json
    """Every server's settings without addresses and secrets: part of a collection's identity."""
    references: dict[str, list[str]] = {}
    """Server name -> the servers that its settings name."""
    code: dict[str, str] = {}
    """Server name -> digest of the code of its instances, where they report it."""
    changed_files: dict[str, list[str]] = {}
    """Server name -> files of its code that changed on disk since it loaded them."""
    reloading: list[str] = []
    """Servers whose changed code is being checked, or that start with it."""
    changed_code: dict[str, str] = {}
    """Server name -> how the code of an instance that was refused differs from the code that this run began with."""

    def has(self, server: str, url: str) -> bool:
        """True while the instance at `url` is there, heard of or not."""
        return url in self.servers.get(server, ()) or url in self.quiet.get(server, ())


class HeadFile(Record):
    """`head.json` in the run's folder (mode 0600): how other commands find the run."""

    run_id: str
    url: str
    pid: int
    folder: str = ""
    """In which the run was started, absolute."""
    token: str | None = Field(default=None, repr=False)


class RunOrigin(Record):
    """Who started a run and where: told by its head to its own user only."""

    run_id: str
    folder: str
    uid: int
    pid: int


class FinishReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The world said done."""
    ANSWERED = "answered"
    """The model called no tool."""
    TRUNCATED = "truncated"
    """The environment cut the episode short (Gymnasium's `truncated`)."""
    MAX_STEPS = "max_steps"
    """The agent's own limit on tool calls or turns."""
    LENGTH = "length"
    """The model's output was cut by its token limit before it called a tool."""
    CONTENT_FILTER = "content_filter"
    """The endpoint withheld the model's output."""

    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation no longer fits the model's context."""
    UNREADABLE_CALL = "unreadable_call"
    """The model began a tool call that the engine's tool parser could not read."""

    @property
    def truncated(self) -> bool:
        """True when a limit, not the world or the model, ended the episode."""
        return self in _TRUNCATING


_TRUNCATING = (
    FinishReason.TRUNCATED,
    FinishReason.MAX_STEPS,
    FinishReason.LENGTH,
    FinishReason.CONTENT_FILTER,
    FinishReason.CONTEXT_OVERFLOW,
)


MOST_REWARD = 1e60
"""Beyond it squares and sums of rewards are not finite any more."""


class Verdict(BaseModel):
    """What an environment says of a finished episode; extra fields land on the rollout row."""

    model_config = ConfigDict(frozen=True, extra="allow")

    reward: float = Field(ge=-MOST_REWARD, le=MOST_REWARD, allow_inf_nan=False)
    success: bool | None = None
    """Whether the task was solved; None, and not on the row, where the environment has no such notion."""
    reward_components: dict[str, float] | None = None
    """The parts of the reward by name; None, and not on the row, where it has none."""


class FailureRow(Record):
    """One failed attempt, a line of `X_failures.jsonl`. It has no reward on purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True)

    task_index: int = Field(alias="_ng_task_index")
    rollout_index: int = Field(alias="_ng_rollout_index")
    attempt_index: int = Field(alias="_ng_attempt_index")
    agent_ref: Json
    failure_kind: str
    server: str
    """Where it began."""
    status: int
    upstream_status: int | None
    detail: str
    terminal: bool
    """True: no other attempt in the same command. The next command tries again, but for a `bad_task`."""
    time: float
    """Unix seconds."""
    duration_s: float


State = Literal["running", "complete", "incomplete", "interrupted", "stopped"]
"""Of a collection: `incomplete` means ended with rollouts given up, `stopped` that it could not go on."""


class DatasetStatus(Record):
    """One data set of a mixture in `X_status.json`."""

    measured: int
    """Rollouts on disk."""
    tasks: int
    """Tasks with at least one of them."""
    successes: int | None
    """None where its environment reports no success."""
    success_stderr: float | None
    """Standard error of the success rate, clustered by task."""
    mean_reward: float
    reward_stderr: float | None
    """Standard error of the mean reward, clustered by task."""


class CollectionStatus(Record):
    """`X_status.json`, replaced atomically while a collection runs."""

    state: State
    expected: int
    """Rollouts asked for: rows x repeats."""
    measured: int
    """Rollouts on disk."""
    tasks: int = 0
    """Tasks with at least one of them."""
    failed: int
    """Rollouts given up in this collection."""
    failed_attempts: int
    in_flight: int
    oldest_s: float = 0.0
    """Age of the oldest rollout in flight."""
    successes: int | None
    """None where not every data set reports success."""
    success_stderr: float | None = None
    """Standard error of the success rate, clustered by task."""
    token_turns: int = 0
    """Later turns of the model whose tokens are on record."""
    token_breaks: int = 0
    """Those of them whose prompt does not begin with exactly the turn before; their share is the run's drift rate."""
    mean_reward: float | None
    """Over all data sets; None where their rewards are on different scales (`datasets` has the mean of each)."""
    reward_stderr: float | None
    """Standard error of the mean over rollouts measured so far, clustered by task: repeats of one task are alike."""
    datasets: dict[str, DatasetStatus] = Field(default_factory=dict)
    """The parts of a mixture, by `dataset_name`; empty unless there are several."""
    rollouts_per_s: float
    eta_s: float | None
    failures: dict[str, int]
    """Failure kind -> attempts."""
    updated: float
    pid: int
    note: str = ""
