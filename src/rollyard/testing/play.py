"""One episode, from a row to its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rollyard.agents.base import Agent
from rollyard.resources_servers.base import Environment, ResourcesServer
from rollyard.services.config.plugins import FAMILIES, load_server
from rollyard.services.errors import OperatorError
from rollyard.services.types import Json
from rollyard.testing.in_process import agent_server, environment_server, wired
from rollyard.testing.scripted_model import Script, Turns


@dataclass(frozen=True)
class Rollout:
    """An episode that was played to its end."""

    row: Json
    """As a collection would store it."""
    requests: list[Json]
    """What the model was sent, the oldest first."""

    def __getitem__(self, name: str) -> Any:
        """A field of the row, such as one that the environment's verdict reports."""
        return self.row[name]

    @property
    def reward(self) -> float:
        """The verdict's reward."""
        return float(self.row["reward"])

    @property
    def success(self) -> bool | None:
        """Whether the task was solved; None where the environment has no such notion."""
        return self.row.get("success")

    @property
    def finish_reason(self) -> str:
        """Why the episode ended, one of `rollyard.FinishReason`."""
        return str(self.row["finish_reason"])

    @property
    def items(self) -> list[Json]:
        """What the model wrote and what it was answered, in order."""
        return list(self.row["response"]["output"])

    @property
    def tool_outputs(self) -> list[Any]:
        """What the tools answered, as the model read it."""
        return [item["output"] for item in self.items if item.get("type") == "function_call_output"]


async def play(
    environment: type[Environment[Any]] | type[ResourcesServer] | str | Path,
    row: Mapping[str, Any],
    turns: Turns,
    *,
    agent: type[Agent[Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    agent_settings: Mapping[str, Any] | None = None,
    models: Mapping[str, Turns] | None = None,
) -> Rollout:
    """Play `row` in the environment, with a model that says `turns`.

    `environment` is a class, or the folder of an environment. `agent`: by default the game agent, which ends when a
    tool says `done`, for turn-based environments the turn agent. `models`: further scripted model servers by name, such
    as a judge.

    Raises Failure where a collection would record a failure: BadTask, an exception of the environment, a reward that is
    not a number. Raises OperatorError for settings that the environment or the agent does not have.
    """
    kind = _environment(environment)
    script = Script(turns)
    names = {"environment": "environment", "model": "policy_model"}
    make = {
        names["environment"]: environment_server(kind, settings or {}),
        names["model"]: script.model,
        "agent": agent_server(agent or _agent_for(kind), agent_settings or {}, **names),
        **{name: Script(said).model for name, said in (models or {}).items()},
    }
    async with wired(make) as servers:
        return Rollout(await servers.run(row), script.asked)


def load(folder: str | Path) -> Any:
    """The class that the `app.py` of a server's folder defines, loaded as a run does: environment, agent, model server.

    Raises OperatorError saying what is wrong with the folder.
    """
    path = Path(folder).resolve()
    if (family := path.parent.name) not in FAMILIES:
        raise OperatorError(f"{path} is not in a folder named {', '.join(FAMILIES)}: which kind of server is it?")
    server = load_server(family, path, "app.py")
    return server.environment if issubclass(server, ResourcesServer) else server


def _environment(given: type[Environment[Any]] | type[ResourcesServer] | str | Path) -> type[Environment[Any]]:
    found = load(given) if isinstance(given, str | Path) else given
    kind = found.environment if isinstance(found, type) and issubclass(found, ResourcesServer) else found
    if not (isinstance(kind, type) and issubclass(kind, Environment)):
        raise OperatorError(f"{found!r} is not an environment; expected an Environment class or its folder")
    return kind


def _agent_for(environment: type[Environment[Any]]) -> type[Agent[Any]]:
    name = "game_agent" if environment.turn is Environment.turn else "turn_agent"
    found: type[Agent[Any]] = import_module(f"rollyard.agents.{name}.app").server
    return found
