"""Environment: what the author of an environment writes. No HTTP here.

The protocol between an environment, its agent and the tools that read rollouts:

`done`               A tool whose answer is an object with `"done": true` ends the episode (the game agent looks for it,
                     the simple agent does not). Return such an object, or a `ToolResult`. In the turn-based form
                     `Turn.terminated` and `Turn.truncated` say it.
`reward`             A finite number: `Verdict.reward`, and `Turn.reward` step by step in the turn-based form.
`success`            `Verdict.success`: whether the task was solved. Success rates and pass@k are counted from it; leave
                     it out where the environment has no such notion.
`reward_components`  `Verdict.reward_components`: the parts of the reward by name. They land on the rollout row.
`Verdict(**more)`    Every further field lands on the rollout row under its own name.
`Verification`       What `verify` is given: `text`, the model's last message; `response`, the whole episode as an
                     OpenAI Response; `row`, the row's keys beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from rollyard.resources_servers.models import Models
from rollyard.services.http.request import read_object
from rollyard.services.server.settings import ServerSettings, settings_argument
from rollyard.services.types import Json, Verdict


class BadTask(Exception):
    """Raise it from an Environment when the row cannot be played at all: a terminal failure, never a reward.

    From a tool or a turn the model reads its text: there the row was good, and nothing that a model does may void it.
    """


class EnvironmentSettings(ServerSettings):
    """What the settings of every environment share."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        "session_idle_s",
        "orphan_s",
        "max_sessions",
    }

    session_idle_s: float = Field(default=1800.0, gt=0)
    """A session that was not used for so long is closed; longer than a model call may take."""
    orphan_s: float = Field(default=15.0, gt=0)
    """A session that nothing has used for so long is closed if the process of its agent has ended."""
    max_sessions: int = Field(default=100_000, ge=1)
    """More than that are refused."""
    system_prompt: str | None = None
    """In place of the environment's own system prompt; an empty text switches that off."""
    user_template: str | None = None
    """In place of the environment's own user template, such as `{question}`; an empty text switches that off."""


S = TypeVar("S", bound=EnvironmentSettings)


@dataclass(frozen=True)
class Turn:
    """Answer of a turn-based step, Gymnasium's five values."""

    observation: str
    """What the model reads next."""
    reward: float
    """Of this step alone."""
    terminated: bool
    """The environment has ended the episode."""
    truncated: bool
    """A limit has ended the episode."""
    info: Json
    """Facts for the record; the model does not read them."""


@dataclass(frozen=True)
class ToolResult:
    """What a tool may return to say whether the episode is over.

    On the wire: an object gets the key `done`, a list of content parts (images) one more part, and anything else, such
    as a text, becomes `{"output": ..., "done": ...}`.
    """

    output: Any
    done: bool = False

    @property
    def json(self) -> Json | list[Json]:
        """The tool's answer on the wire."""
        if isinstance(self.output, Mapping):
            return {**self.output, "done": self.done}
        if isinstance(self.output, list) and self.output and all(map(_is_part, self.output)):
            told = {"type": "input_text", "text": '{"done": true}'}
            return [*self.output, told] if self.done else self.output
        return {"output": self.output, "done": self.done}


def _is_part(item: object) -> bool:
    return isinstance(item, dict) and str(item.get("type")).startswith("input_")


@dataclass(frozen=True)
class Verification:
    """What `/verify` was sent. The body is parsed when a member is read for the first time."""

    body: bytes

    @cached_property
    def row(self) -> Json:
        """The whole request: the row's keys beside `response`. Raises Failure bad_request."""
        return read_object(self.body)

    @property
    def response(self) -> Json:
        """The episode as an OpenAI Responses object; its `output` holds every turn in order."""
        response = self.row.get("response")
        return response if isinstance(response, dict) else {}

    @property
    def text(self) -> str:
        """The model's last message, as text; empty when it wrote none."""
        output = self.response.get("output")
        for item in reversed(output if isinstance(output, list) else []):
            # A turn-based episode holds the environment's observations, too: messages of the user.
            if isinstance(item, dict) and item.get("type") == "message" and item.get("role") in (None, "assistant"):
                return _text_of(item.get("content"))
        return ""


def _text_of(content: object) -> str:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "output_text")
    return "".join(text for text in texts if isinstance(text, str))


class Environment(Generic[S]):
    """One episode. Single use: made for a row, seeded, played, verified, closed."""

    # --- what you write ---------------------------------------------------------------------------------------------

    def __init__(self, task: Mapping[str, Any], settings: S) -> None:
        """`task` is the data set's row. Check it here: raise BadTask with what was found and what was expected."""
        self.task = task
        self.settings = settings

    async def verify(self, response: Verification) -> Verdict:
        """Score the finished episode."""
        raise NotImplementedError(f"{type(self).__name__} must define verify")

    # --- what you may write -----------------------------------------------------------------------------------------

    system_prompt: ClassVar[str | None] = None
    """Goes before the input of rows that bring neither `instructions` nor a system or developer message."""
    user_template: ClassVar[str | None] = None
    """The user message of rows without `responses_create_params.input`: `{question}` is the row's field `question`."""

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: S) -> AsyncIterator[Any]:
        """What all episodes of a server share, such as a pool of processes: yield it, and find it as `self.shared`.

        Entered when the server starts, before it is ready, and left when it stops; `ng_run` also enters and leaves it
        when it checks a config. Raise OperatorError, with what to do, to stop the start.
        """
        yield None

    @classmethod
    def offers(cls, name: str, settings: S) -> bool:
        """Whether the tool of this name exists under these settings; every one does unless you say otherwise."""
        return True

    async def seed(self) -> list[Json]:
        """Set the environment up. Items returned are appended to the conversation before the model's first turn."""
        return []

    async def reset(self) -> tuple[str, Json]:
        """Turn-based form: the first observation and an info dictionary, after `seed`."""
        raise BadTask(f"{type(self).__name__} is not turn-based: it has no /reset")

    async def turn(self, text: str) -> Turn:
        """Turn-based form: the model's whole message is the action."""
        raise BadTask(f"{type(self).__name__} is not turn-based: it takes no messages at /step")

    async def close(self) -> None:
        """Give back what the episode holds. Called exactly once, whatever happened."""

    # --- what is done for you ---------------------------------------------------------------------------------------

    shared: ClassVar[Any] = None
    """What `lifespan` yielded on this server. Narrow its type in your class: `shared: ClassVar[Pool]`."""
    models: ClassVar[Models]
    """The model servers of the run, for a judge; there from the beginning of `lifespan`."""


E = TypeVar("E", bound=Environment[Any])


def bind(environment: type[E], **members: Any) -> type[E]:
    """The environment for one server: a subclass, so that what one server shares does not reach another's episodes."""
    names = {name: getattr(environment, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(environment.__name__, (environment,), {**names, **members})


def settings_of(environment: type[Environment[Any]]) -> type[EnvironmentSettings]:
    """The type argument of `Environment[...]`, of the class itself or the nearest one that it extends."""
    found = (settings_argument(kind, EnvironmentSettings) for kind in environment.__mro__)
    return next(filter(None, found), EnvironmentSettings)
