"""Data that is sent over HTTP or written to files. All models are frozen and have no behaviour.

Conversations are OpenAI Responses items (`openai.types.responses`) and stay plain JSON objects, so that unknown fields
survive and nothing is validated twice.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

Json = dict[str, Any]
"""A JSON object as orjson parses it."""


TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "token_trace")
"""Training fields of the last item of a model call: three from NeMo Gym, and the origin of the tokens."""

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
"""Paths of an environment that the model must not call, and that are not allowed as names of tools."""


class Record(BaseModel):
    """Base of models that are written or sent: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Problem(BaseModel):
    """An error response (RFC 9457). It names the server where the failure originated, and is forwarded unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = "about:blank"
    """`urn:rollyard:<failure kind>`."""
    title: str = ""
    status: int
    """HTTP status of this response."""
    detail: str = ""
    """One human-readable sentence."""
    instance: str = ""
    """The request path that failed."""
    server: str = ""
    """Name of the server where it originated."""
    upstream_status: int | None = None
    """Status of the external endpoint behind that server, if there is one."""
    code: str | int | None = None
    """Machine-readable code, as in OpenAI's errors: the endpoint's own if it gave one, else the failure kind."""

    @model_validator(mode="before")
    @classmethod
    def _without_message(cls, read: Any) -> Any:
        return {key: value for key, value in read.items() if key != "message"} if isinstance(read, dict) else read

    @computed_field
    def message(self) -> str:
        """`detail` under the name that OpenAI's clients display."""
        return self.detail


class ServerRef(Record):
    """A reference to another server in a server's settings."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = ""
    """The family. Only the name identifies the server."""
    name: str


class AccessRules(Record):
    """Who may call the servers of a run without a token, in addition to its own user and root."""

    other_users: bool = False
    """Whether all users of the host may call them."""
    hosts: tuple[str, ...] = ()
    """Further host names of the servers, such as those of a proxy."""


class Keys(Record):
    """Secrets shared by the processes of one run. Created once by the process that starts it; never shown or served."""

    run_id: str
    """Sent with every request, so that no server handles a request of another run on the same port."""
    secret: str = Field(repr=False)
    """Signs session cookies and authorizes servers to register with the head."""
    token: str | None = Field(default=None, repr=False)
    """Bearer token required for every request when a server is bound to a non-loopback address."""
    access: AccessRules = AccessRules()


class Launch(Record):
    """Everything that a server process receives, through its standard input."""

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
    """This process ends when that process dies; 0 if that is on another host."""
    advertise: str | None = None
    """Host name under which others reach this host, if it is not the bound address."""
    log_folder: str | None = None
    """Folder of the run's logs; it may not exist on another host."""
    check_only: bool = False
    """Create the server, check for problems that would stop its start, and exit."""


class ServerCode(Record):
    """Digests of the code that a server process has loaded, computed in `services/config/server_code`."""

    digest: str
    """Digest of the fields below."""
    files: dict[str, str]
    """Path relative to its code folder -> short digest of its content."""
    packages: dict[str, str]
    """Package that the server declares -> installed version."""


class CodeSources(Record):
    """Where the files of a `ServerCode` are on the server's host."""

    paths: dict[str, str]
    """Name in `ServerCode.files` -> absolute path."""
    folders: dict[str, str]
    """Folders in which every code file counts: name, the prefix of the names of their files -> absolute path."""


class Registration(Record):
    """Announces where a server process listens, before and after it is ready."""

    name: str
    instance: str
    url: str
    pid: int
    ready: bool = False
    phase: str = ""
    """The startup phase."""
    code: ServerCode | None = None
    """None: the process does not report its code."""
    sources: CodeSources | None = None


class Heartbeat(Record):
    """Sent every few seconds by each instance. The head drops an instance that stops sending it."""

    instance: str
    requests: int
    in_flight: int
    sessions: int
    phase: str = ""
    """What it is recovering while it stays ready."""


class ServerInstance(Record):
    """One running instance, in the format of NeMo Gym's `/server_instances` with additional counters."""

    process_name: str
    """Unique name of the instance."""
    server_type: str
    """The family."""
    name: str
    """The implementation, as in NeMo Gym's listing; other servers use `server_name`."""
    server_name: str
    dir_path: str
    entrypoint: str
    host: str | None
    port: int | None
    pid: int | None
    config_path: str
    url: str | None
    status: Literal["starting", "success", "timeout", "restarting"]
    """`success` means ready, as in NeMo Gym."""
    start_time: float
    """Unix seconds."""
    uptime_seconds: float
    ready: bool
    requests: int
    requests_per_s: float = 0.0
    """Mean of the last ten seconds."""
    in_flight: int
    sessions: int
    restarts: int
    phase: str = ""
    """The startup phase, or what it is recovering."""
    changed_files: list[str] = []
    """Files of its code that have changed on disk since it loaded them, with names as in `ServerCode.files`."""


class Directory(Record):
    """The addresses of the instances of every server of the run."""

    run_id: str
    servers: dict[str, list[str]]
    """Server name -> base URLs of its ready instances; empty if none is ready."""
    quiet: dict[str, list[str]] = {}
    """Server name -> base URLs of instances with late heartbeats, which may be busy. Their sessions continue."""
    instances: list[str] = []
    """Every registered instance in any state, until its process ends."""
    families: dict[str, str]
    """Server name -> family."""
    start_timeouts_s: dict[str, float] = {}
    """Server name -> its start timeout, if set. Callers wait that long for it."""
    settings: Json
    """Every server's settings without addresses and secrets, which are part of a collection's identity."""
    references: dict[str, list[str]] = {}
    """Server name -> the servers that its settings refer to."""
    code: dict[str, str] = {}
    """Server name -> digest of the code of its instances, if they report it."""
    changed_files: dict[str, list[str]] = {}
    """Server name -> files of its code that have changed on disk since it loaded them."""
    reloading: list[str] = []
    """Servers whose changed code is being checked or that are starting with it."""
    changed_code: dict[str, str] = {}
    """Server name -> how the code of a rejected instance differs from the code with which the run started."""

    def has(self, server: str, url: str) -> bool:
        """True if the instance at `url` is registered, even if its heartbeats are late."""
        return url in self.servers.get(server, ()) or url in self.quiet.get(server, ())


class HeadFile(Record):
    """`head.json` in the run's folder (mode 0600), with which other commands find the run."""

    run_id: str
    url: str
    pid: int
    folder: str = ""
    """Working directory in which the run was started, absolute."""
    token: str | None = Field(default=None, repr=False)


class RunOrigin(Record):
    """Who started a run and where. The head returns it only to that user."""

    run_id: str
    folder: str
    uid: int
    pid: int


class FinishReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment ended the episode."""
    ANSWERED = "answered"
    """The model called no tool."""
    TRUNCATED = "truncated"
    """The environment truncated the episode (Gymnasium's `truncated`)."""
    MAX_STEPS = "max_steps"
    """The agent's own limit on tool calls or turns."""
    LENGTH = "length"
    """The token limit truncated the model's output before it called a tool."""
    CONTENT_FILTER = "content_filter"
    """The endpoint withheld the model's output."""

    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation no longer fits the model's context."""
    UNREADABLE_CALL = "unreadable_call"
    """The model started a tool call that the engine's tool parser could not parse."""

    @property
    def truncated(self) -> bool:
        """True if a limit ended the episode, rather than the environment or the model."""
        return self in _TRUNCATING


_TRUNCATING = (
    FinishReason.TRUNCATED,
    FinishReason.MAX_STEPS,
    FinishReason.LENGTH,
    FinishReason.CONTENT_FILTER,
    FinishReason.CONTEXT_OVERFLOW,
)


MOST_REWARD = 1e60
"""Above it, squares and sums of rewards are no longer finite."""


class Verdict(BaseModel):
    """An environment's verdict on a finished episode. Extra fields are copied to the rollout row."""

    model_config = ConfigDict(frozen=True, extra="allow")

    reward: float = Field(ge=-MOST_REWARD, le=MOST_REWARD, allow_inf_nan=False)
    success: bool | None = None
    """Whether the task was solved. None, and not on the row, if the environment does not define success."""
    reward_components: dict[str, float] | None = None
    """The parts of the reward by name. None, and not on the row, if it has none."""


class FailureRow(Record):
    """One failed attempt, a line of `X_failures.jsonl`. It deliberately has no reward."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True)

    task_index: int = Field(alias="_ng_task_index")
    rollout_index: int = Field(alias="_ng_rollout_index")
    attempt_index: int = Field(alias="_ng_attempt_index")
    agent_ref: Json
    failure_kind: str
    server: str
    """Where the failure originated."""
    status: int
    upstream_status: int | None
    detail: str
    terminal: bool
    """True if this command does not retry it. The next command does, unless it is a `bad_task`."""
    time: float
    """Unix seconds."""
    duration_s: float


State = Literal["running", "complete", "incomplete", "interrupted", "stopped"]
"""State of a collection. `incomplete`: it ended with permanently failed rollouts; `stopped`: it could not continue."""


class DatasetStatus(Record):
    """One dataset of a mixture in `X_status.json`."""

    measured: int
    """Rollouts on disk."""
    tasks: int
    """Tasks with at least one measured rollout."""
    successes: int | None
    """None if its environment does not report success."""
    success_stderr: float | None
    """Standard error of the success rate, clustered by task."""
    mean_reward: float
    reward_stderr: float | None
    """Standard error of the mean reward, clustered by task."""


class CollectionStatus(Record):
    """`X_status.json`, replaced atomically while a collection runs."""

    state: State
    expected: int
    """Expected rollouts: rows x repeats."""
    measured: int
    """Rollouts on disk."""
    tasks: int = 0
    """Tasks with at least one measured rollout."""
    failed: int
    """Permanently failed rollouts of this collection."""
    failed_attempts: int
    in_flight: int
    oldest_s: float = 0.0
    """Age of the oldest rollout in flight."""
    successes: int | None
    """None unless every dataset reports success."""
    success_stderr: float | None = None
    """Standard error of the success rate, clustered by task."""
    token_turns: int = 0
    """Turns after the first of an episode with recorded tokens."""
    token_breaks: int = 0
    """Those of them with a prefix mismatch: the prompt does not begin with the exact tokens of the previous turn."""
    mean_reward: float | None
    """Over all datasets. None if their rewards have different scales; `datasets` has the mean of each."""
    reward_stderr: float | None
    """Standard error of the mean reward, clustered by task, because repeats of one task are correlated."""
    datasets: dict[str, DatasetStatus] = Field(default_factory=dict)
    """The parts of a mixture by `dataset_name`; empty unless there are several."""
    rollouts_per_s: float
    eta_s: float | None
    failures: dict[str, int]
    """Failure kind -> attempts."""
    updated: float
    pid: int
    note: str = ""
