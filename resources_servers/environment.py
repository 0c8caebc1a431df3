"""Environment: what the author of a world writes. No HTTP here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import Field

from rollyard.services.http.request import read_object
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Json, Verdict


class BadTask(Exception):
    """Raise it from an Environment when the row cannot be played at all: a terminal failure, never a reward.

    From a tool or a turn the model reads its text: there the row was good, and nothing that a model does may void it.
    """


class EnvironmentSettings(ServerSettings):
    """What every world's settings share."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        "session_idle_s",
        "orphan_s",
        "max_sessions",
    }

    session_idle_s: float = Field(default=1800.0, gt=0)
    """A session that nobody touched for so long is closed; longer than a model call may take."""
    orphan_s: float = Field(default=15.0, gt=0)
    """A session that nothing has used for so long is closed if the process of its agent has ended."""
    max_sessions: int = Field(default=100_000, ge=1)
    """More than that are refused."""


S = TypeVar("S", bound=EnvironmentSettings)


@dataclass(frozen=True)
class Turn:
    """Answer of a turn-based step, Gymnasium's five values."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Json


@dataclass(frozen=True)
class Verification:
    """What `/verify` was sent; read only if the world looks at it."""

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
            if isinstance(item, dict) and item.get("type") == "message":
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

    @classmethod
    def offers(cls, name: str, settings: S) -> bool:
        """Whether the tool of this name exists under these settings; every one does unless you say otherwise."""
        return True

    async def seed(self) -> list[Json]:
        """Set the world up. Items returned are appended to the conversation before the model's first turn."""
        return []

    async def reset(self) -> tuple[str, Json]:
        """Turn-based form: the first observation and an info dictionary, after `seed`."""
        raise BadTask(f"{type(self).__name__} is not turn-based: it has no /reset")

    async def turn(self, text: str) -> Turn:
        """Turn-based form: the model's whole message is the action."""
        raise BadTask(f"{type(self).__name__} is not turn-based: it takes no messages at /step")

    async def close(self) -> None:
        """Give back what the episode holds. Called exactly once, whatever happened."""


def settings_of(environment: type[Environment[Any]]) -> type[EnvironmentSettings]:
    """The type argument of `Environment[...]`: where a world states its settings."""
    for base in getattr(environment, "__orig_bases__", ()):
        for argument in get_args(base):
            if isinstance(argument, type) and issubclass(argument, EnvironmentSettings):
                return argument
    return EnvironmentSettings
