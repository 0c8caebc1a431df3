"""Defines `Environment`, the base class of all environments. This module is independent of HTTP.

The protocol between an environment, its agent and the tools that read rollouts:

`done`               A tool that returns an object with `"done": true` ends the episode (the game agent checks it, the
                     simple agent does not). Return such an object, or a `ToolResult`. Turn-based mode uses
                     `Turn.terminated` and `Turn.truncated` instead.
`reward`             A finite number: `Verdict.reward`, and `Turn.reward` per step in turn-based mode.
`success`            `Verdict.success`: whether the task was solved. Success rates and pass@k are computed from it. Omit
                     it if the environment does not define success.
`extracted_answer`   An additional field: the answer found in the response, None if there is none. cons@k is computed
                     from it. Answers that the environment normalises to the same text count as the same.
`reward_components`  `Verdict.reward_components`: the parts of the reward by name. They are stored on the rollout row.
`verdict_fields`     Which of these fields explain the reward. The viewer shows them first.
`Verdict(**more)`    Every additional field is stored on the rollout row under its own name.
`Verification`       The argument of `verify`: `text`, the model's last message; `response`, the complete episode as an
                     OpenAI Response; `row`, the request with the row's keys.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import orjson
from pydantic import Field

from rollyard.records.errors import OperatorError
from rollyard.records.rewards import MAX_FIELDS, VerdictField
from rollyard.records.types import Json, Verdict
from rollyard.services.http.client import ServerClient
from rollyard.services.http.request import read_object
from rollyard.services.responses.response_validity import check_graded, is_answer, message_text, read_response
from rollyard.services.sandbox.box_program import BoxProgram, ProgramEnd
from rollyard.services.server.settings import ServerSettings, settings_argument


class BadTask(Exception):
    """Raised by an Environment if the row is unusable. The rollout fails permanently and gets no reward.

    If a tool or a turn raises it, the message is sent to the model instead: the row was valid when the session was
    opened, and no action of the model can make it invalid.
    """


class EnvironmentSettings(ServerSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        "session_idle_s",
        "verified_idle_s",
        "orphan_s",
        "served_dataset",
        "failures_as_rows",
        "max_sessions",
    }

    session_idle_s: float = Field(default=1800.0, gt=0)
    """Seconds after which an idle session is closed. Must exceed the duration of the longest model call."""
    verified_idle_s: float = Field(default=120.0, gt=0)
    """The same limit after a verdict for a client that is not an agent of Rollyard; many of them never close their
    sessions. Another call in the session restores the longer limit."""
    orphan_s: float = Field(default=15.0, gt=0)
    """Seconds after which an idle session is closed if its agent's process has exited."""
    max_sessions: int = Field(default=100_000, ge=1)
    """Maximum number of open sessions; requests for more are rejected."""
    served_dataset: str | None = None
    """Dataset for clients that request tasks by their index, such as NeMo Evaluator: the name of an entry of
    `datasets`, or the path of a file. Null serves none."""
    failures_as_rows: bool = False
    """Report a failed `/verify` as a row with status 200 and `_ng_failure_class`, as NeMo Gym's collector expects, to
    callers that are not Rollyard's."""
    system_prompt: str | None = None
    """Replaces the environment's system prompt; an empty string disables it."""
    user_template: str | None = None
    """Replaces the environment's user template, such as `{question}`; an empty string disables it."""


S = TypeVar("S", bound=EnvironmentSettings)


@dataclass(frozen=True)
class Turn:
    observation: str
    """What the model reads next."""
    reward: float = 0.0
    """Reward of this step only."""
    terminated: bool = False
    """The environment has ended the episode."""
    truncated: bool = False
    """A limit has ended the episode."""
    info: Json = field(default_factory=dict)
    """Extra fields for the recorded rollout; the model does not see them."""


@dataclass(frozen=True)
class ToolResult:
    """A tool's result that also states whether the episode is over.

    In the response, an object gets the additional key `done`. A list of content parts, such as images, gets an
    additional part if the episode is over. Anything else, such as a string, becomes `{"output": ..., "done": ...}`.
    """

    output: Any
    done: bool = False

    @property
    def json(self) -> Json | list[Json]:
        if isinstance(self.output, Mapping):
            return {**self.output, "done": self.done}
        parts = self.output if isinstance(self.output, list) else []
        if parts and all(isinstance(part, dict) and str(part.get("type")).startswith("input_") for part in parts):
            done_part = {"type": "input_text", "text": '{"done": true}'}
            return [*self.output, done_part] if self.done else self.output
        return {"output": self.output, "done": self.done}


@dataclass(frozen=True)
class Verification:
    """The request to `/verify`. The body is parsed on first access."""

    body: bytes

    @cached_property
    def row(self) -> Json:
        """The complete request: the row's keys and `response`. Raises Failure bad_request if it is not an object."""
        return read_object(self.body)

    @cached_property
    def response(self) -> Json:
        """The episode as an OpenAI Response; its `output` contains every turn in order.

        Raises Failure bad_request if the request contains no finished Response, because nothing else is ever scored.
        """
        response: Json = self.row.get("response")  # type: ignore[assignment]
        check_graded(response)
        return response

    @cached_property
    def text(self) -> str:
        """The text of the model's last message; empty if there is none."""
        # A turn-based episode also contains the environment's observations as user messages.
        return next((message_text(item) for item in reversed(self.response["output"]) if is_answer(item)), "")


class Environment(Generic[S]):
    """One episode. An object is created for a row, then seeded, run, verified and closed. It is never reused."""

    # --- required -----------------------------------------------------------------------------------------------

    def __init__(self, task: Mapping[str, Any], settings: S) -> None:
        """`task` is the dataset row. Check it here: raise BadTask with what was found and what was expected."""
        self.task = task
        self.settings = settings

    async def verify(self, response: Verification) -> Verdict:
        raise NotImplementedError(f"{type(self).__name__} must define verify")

    # --- optional -----------------------------------------------------------------------------------------------

    system_prompt: ClassVar[str | None] = None
    """System prompt for rows that have neither `instructions` nor a system or developer message."""
    stateless: ClassVar[bool | None] = None
    """Whether the verdict depends only on the row and the response, so that `/verify` needs no session. The default,
    None, means yes for an environment without tools, `seed`, `reset` and `turn`, and no for any other."""
    user_template: ClassVar[str | None] = None
    """User message for rows without `responses_create_params.input`. `{question}` is replaced by that field."""

    verdict_fields: ClassVar[tuple[VerdictField, ...]] = ()
    """The fields of the row that explain the reward: gold answer, extracted answer, reason, tests, parts of the reward,
    limits. If empty, the viewer recognises common names, such as `expected_answer` and `extracted_answer`."""

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: S) -> AsyncIterator[Any]:
        """Yield what all episodes of a server share, such as a process pool. Episodes read it from `self.shared`.

        The lifespan is entered before the server becomes ready and exited when the server stops. `ng_run` also enters
        and exits it to check a config. To prevent the server from starting, raise OperatorError with a message that
        explains what to do.
        """
        yield None

    @classmethod
    def offers(cls, name: str, settings: S) -> bool:
        """Return whether the tool `name` is available with these settings; by default every tool is."""
        return True

    async def seed(self) -> list[Json]:
        """Set up the environment. The returned items are appended to the conversation before the model's first turn."""
        return []

    async def reset(self) -> tuple[str, Json]:
        """Turn-based mode: return the first observation and an info dictionary. Called after `seed`."""
        raise BadTask(f"{type(self).__name__} is not turn-based: it has no /reset")

    async def turn(self, text: str) -> Turn:
        """Turn-based mode: take one step; the model's complete message is the action."""
        raise BadTask(f"{type(self).__name__} is not turn-based: it does not accept messages at /step")

    async def run_program(self, order: BoxProgram) -> ProgramEnd:
        """Run an agent's program in the box of the episode, beside its files. Cancelled when the program has to end."""
        raise BadTask(f"{type(self).__name__} has no box in which a program can run; expected in_box: false")

    async def close(self) -> None:
        """Release the episode's resources. Called exactly once, even after a failure."""

    # --- provided ---------------------------------------------------------------------------------------------------

    shared: ClassVar[Any] = None
    """The value that `lifespan` yielded on this server. Narrow its type in your class: `shared: ClassVar[Pool]`."""
    models: ClassVar[Models]
    """The run's model servers, for example for a judge. Can already be used in `lifespan`."""


E = TypeVar("E", bound=Environment[Any])


def bind(environment: type[E], **members: Any) -> type[E]:
    """Return a subclass for one server, so that servers in the same process do not share class attributes."""
    names = {name: getattr(environment, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(environment.__name__, (environment,), {**names, **members})


def check_environment(environment: Any) -> None:
    """Raises OperatorError unless `environment` is a subclass of Environment with valid prompts, fields and methods."""
    if not (isinstance(environment, type) and issubclass(environment, Environment)):
        raise OperatorError(f"serve was given {environment!r:.100}; expected a subclass of Environment")
    for name in ("system_prompt", "user_template"):
        if not isinstance(found := getattr(environment, name), str | None):
            kind = type(found).__name__
            raise OperatorError(f"{environment.__name__}.{name} is {found!r:.100} ({kind}); expected a string or None")
    fields = environment.verdict_fields
    if not isinstance(fields, tuple) or not all(isinstance(each, VerdictField) for each in fields):
        expected = 'a tuple such as (VerdictField(path="reason", role="reason"),)'
        raise OperatorError(f"{environment.__name__}.verdict_fields is {fields!r:.100}; expected {expected}")
    if len(fields) > MAX_FIELDS:
        raise OperatorError(f"{environment.__name__}.verdict_fields has {len(fields)} fields; at most {MAX_FIELDS}")
    for name in ("verify", "seed", "reset", "turn", "close"):
        if inspect.isasyncgenfunction(getattr(environment, name)):
            reason = f"{environment.__name__}.{name} contains `yield`; expected an async method without `yield`"
            raise OperatorError(reason)


def is_stateless(environment: type[Environment[Any]], *, has_tools: bool) -> bool | None:
    """Return whether the verdict depends only on the row and the response; None if the class does not state it."""
    if environment.stateless is not None:
        return environment.stateless
    inherited = all(getattr(environment, name) is getattr(Environment, name) for name in ("seed", "reset", "turn"))
    return True if inherited and not has_tools else None


def settings_of(environment: type[Environment[Any]]) -> type[EnvironmentSettings]:
    """Return the settings class, the type argument of `Environment[...]`, from the class or its nearest base class."""
    found = (settings_argument(kind, EnvironmentSettings) for kind in environment.__mro__)
    return next(filter(None, found), EnvironmentSettings)


RESPOND_S = 900.0


class Models:
    """The run's model servers, which are addressed by their names in the config."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    async def respond(self, server: str, request: Json, *, timeout_s: float = RESPOND_S) -> Json:
        """Send an OpenAI Responses create request to the model server `server` and return the Response object.

        `timeout_s` limits the whole call, including the model server's retries. If the call fails, raises Failure with
        the server's name. Do not catch it: the rollout is then recorded as failed and gets no reward.
        """
        answer = await self._client.post(server, "/v1/responses", orjson.dumps(request), timeout_s)
        return read_response(answer.body, server)
