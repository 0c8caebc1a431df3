"""Data that is sent over HTTP or written to files. All models are frozen and have no behaviour.

Conversations are OpenAI Responses items (`openai.types.responses`) and stay plain JSON objects, so that unknown fields
are kept and nothing is validated twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, computed_field, model_validator

Json = dict[str, Any]


TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "token_trace")
"""Training fields of the last item of a model call: three from NeMo Gym, and Rollyard's `token_trace`."""

CREATE_PARAMS = frozenset(
    {
        *("access_programs", "background", "context_management", "conversation", "image", "include", "input"),
        *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation"),
        *("parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "reasoning", "safety_identifier", "seed", "service_tier", "store", "stream"),
        *("stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation"),
        *("user", "top_k", "min_p", "min_tokens", "repetition_penalty"),
    }
)
"""Create parameters of OpenAI's Responses API, and `seed` and others that engines support."""

RESERVED_PATHS = frozenset(
    {
        "seed_session",
        "verify",
        "close",
        "close_session",
        "reset",
        "aggregate_metrics",
        "run_program",
        "tools",
        "health",
        "ready",
        "metrics",
        "docs",
        "openapi.json",
    }
)
"""Paths of an environment that the model must not call, so tools cannot have these names."""


class Record(BaseModel):
    """Base class of models that are sent over HTTP or written to files. They are frozen and reject unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Problem(BaseModel):
    """An error response (RFC 9457). It names the server where the failure originated, and is forwarded unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = "about:blank"
    """`urn:rollyard:<failure kind>`."""
    title: str = ""
    status: int
    detail: str = ""
    instance: str = ""
    server: str = ""
    upstream_status: int | None = None
    """Status of the external endpoint behind that server, if there is one."""
    code: str | int | None = None
    """Machine-readable code, as in OpenAI's errors: the endpoint's own code if there is one, else the failure kind."""

    @model_validator(mode="before")
    @classmethod
    def _without_message(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if key != "message"} if isinstance(data, dict) else data

    @computed_field
    def message(self) -> str:
        """`detail` under the name that OpenAI's clients display."""
        return self.detail


_TEXT = {"type": "string"}
PROBLEMS: dict[int | str, Json] = {
    "default": {
        "description": "A problem (RFC 9457)",
        "content": {
            "application/problem+json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        **dict.fromkeys(("type", "title", "detail", "instance", "server", "message"), _TEXT),
                        "status": {"type": "integer"},
                    },
                    "required": ["type", "title", "status", "detail"],
                }
            }
        },
    }
}
"""The error responses of all routes in an OpenAPI document, for FastAPI's parameter `responses`."""


class ServerRef(Record):
    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = ""
    """The server's family. The name alone identifies the server."""
    name: str


class FinishReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    ANSWERED = "answered"
    """The model called no tool."""
    TRUNCATED = "truncated"
    """The environment truncated the episode (Gymnasium's `truncated`)."""
    MAX_STEPS = "max_steps"
    LENGTH = "length"
    """The token limit truncated the model's output. Tool calls in it are not run."""
    CONTENT_FILTER = "content_filter"
    """The endpoint withheld the model's output."""

    CONTEXT_OVERFLOW = "context_overflow"
    UNREADABLE_CALL = "unreadable_call"
    """The model started a tool call that the engine's tool parser could not parse."""
    TIME_LIMIT = "time_limit"
    PROGRAM_FAILED = "program_failed"
    """The program that is the agent called the model, and then ended with an error."""

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
    FinishReason.TIME_LIMIT,
)


MAX_REWARD = 1e60


RECORDED_KEYS = frozenset(
    {"responses_create_params", "response", "finish_reason", "truncated", "timings", "token_trail", "agent_ref"}
)
"""Keys of a rollout row that the agent and the collector write, in addition to all keys that begin with `_ng_`."""


def is_recorded(name: str) -> bool:
    """Return True for a key of the rollout row that the environment must not set."""
    return name in RECORDED_KEYS or name.startswith("_ng_")


def _refuse_bool_and_text(value: Any) -> Any:
    # By name: numpy's booleans are not a subclass of bool and would be converted as well.
    if isinstance(value, str | bytes) or type(value).__name__.startswith("bool"):
        raise ValueError("expected a number")
    return value


class Verdict(BaseModel):
    """An environment's verdict on a finished episode. Extra fields are copied to the rollout row."""

    model_config = ConfigDict(frozen=True, extra="allow")

    reward: Annotated[float, BeforeValidator(_refuse_bool_and_text)] = Field(
        ge=-MAX_REWARD, le=MAX_REWARD, allow_inf_nan=False
    )
    success: bool | None = None
    """Whether the task was solved. None, and absent from the row, if the environment does not define success."""
    reward_components: dict[str, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    """The parts of the reward by name. None, and absent from the row, if the reward has no parts."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        for name in filter(is_recorded, cls.model_fields):
            raise TypeError(f"{cls.__name__} has the field {name}, which the rollout already has: use a different name")


class FailureRow(Record):
    """A failed attempt: one line of `X_failures.jsonl`. It deliberately has no reward."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True)

    task_index: int = Field(alias="_ng_task_index")
    rollout_index: int = Field(alias="_ng_rollout_index")
    attempt_index: int = Field(alias="_ng_attempt_index")
    agent_ref: Json
    failure_kind: str
    server: str
    status: int
    upstream_status: int | None
    detail: str
    terminal: bool
    """True if a failure of this kind is never retried by the same command. The next command does retry it, unless the
    failure is a `bad_task`."""
    abandoned: bool = False
    """True if the command gave up the rollout after this attempt: the failure is terminal, or no attempts are left."""
    time: float
    duration_s: float


State = Literal["running", "complete", "incomplete", "interrupted", "stopped"]
"""State of a collection. `incomplete`: it ended with permanently failed rollouts; `stopped`: it could not continue."""


class DatasetStatus(Record):
    """One dataset of a mixture in `X_status.json`."""

    measured: int
    tasks: int
    successes: int | None
    """Number of solved rollouts; None if the environment does not report success."""
    success_stderr: float | None
    mean_reward: float
    reward_stderr: float | None


class CollectionStatus(Record):
    """`X_status.json`, replaced atomically while a collection runs."""

    state: State
    expected: int
    measured: int
    tasks: int = 0
    failed: int
    failed_attempts: int
    in_flight: int
    concurrency: int | None = None
    """Number of concurrent rollouts that `--concurrency auto` has found so far; None if it was set by hand."""
    oldest_s: float = 0.0
    successes: int | None
    """Number of solved rollouts; None unless every dataset reports success."""
    success_stderr: float | None = None
    token_turns: int = 0
    """Number of turns with recorded tokens, not counting the first turn of each episode."""
    token_breaks: int = 0
    """Number of these turns with a prefix mismatch: the prompt does not begin with the previous turn's exact tokens."""
    mean_reward: float | None
    """Mean reward over all datasets. None if their rewards have different scales; `datasets` has the mean of each."""
    reward_stderr: float | None
    """Standard error of the mean reward, clustered by task, because repeats of one task are correlated."""
    datasets: dict[str, DatasetStatus] = Field(default_factory=dict)
    rollouts_per_s: float
    eta_s: float | None
    failures: dict[str, int]
    started: float = 0.0
    """Time in Unix seconds from which this command collects. What an earlier command abandoned is tried again."""
    updated: float
    pid: int
    note: str = ""


Parallel = Annotated[int, Field(ge=1)] | Literal["auto"]
"""Number of concurrent rollouts; `auto`: found while collecting."""
T = TypeVar("T")

_EMPTY: Json = {}
_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
}


def mapping(value: Any) -> Json:
    """Return `value` if it is a JSON object, else a shared empty dict that must not be modified."""
    return value if isinstance(value, dict) else _EMPTY


def items(value: Any) -> list[Any]:
    """Return `value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Return `value` if it is a string, else ''."""
    return value if isinstance(value, str) else ""


def is_number(value: Any, maximum: float = sys.float_info.max) -> bool:
    """Return whether `value` is a finite number in [-maximum, maximum]. Booleans are not numbers."""
    return type(value) in (int, float) and -maximum <= value <= maximum


def number(value: Any, absent: T, maximum: float = sys.float_info.max) -> float | T:
    """Return `value` if `is_number` accepts it, else `absent`."""
    # The condition of is_number is inlined because a profile calls this ten times per row.
    return float(value) if type(value) in (int, float) and -maximum <= value <= maximum else absent


def whole_number(value: Any, *, least: int = 1 - 2**62) -> int | None:
    """Return `value` if it is an integer from `least` to 2**62 - 1, else None."""
    return value if type(value) is int and least <= value < 2**62 else None


def json_kind(value: Any) -> str:
    """Return the name of the value's JSON type, with an article."""
    return _KINDS.get(type(value), "an object")


def differences(before: Json, after: Json, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted key of each value that differs, in sorted order, with both values; None if a key is missing."""
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", old, new
