"""Runs one episode, from a row to its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rollyard.agents.base import Agent
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, ResourcesServer
from rollyard.services.config.plugins import FAMILIES, load_server
from rollyard.testing.in_process import agent_server, environment_server, in_process_servers
from rollyard.testing.scripted_model import Script, Turns


@dataclass(frozen=True)
class Rollout:
    """The record of a finished episode."""

    row: Json
    """The row that a collection would store."""
    requests: list[Json]
    """The requests to the model, oldest first."""

    def __getitem__(self, name: str) -> Any:
        """Return a field of the row, such as a field of the verdict."""
        return self.row[name]

    @property
    def reward(self) -> float:
        """The verdict's reward."""
        return float(self.row["reward"])

    @property
    def success(self) -> bool | None:
        """Whether the task was solved; None if the environment does not report it."""
        return self.row.get("success")

    @property
    def finish_reason(self) -> str:
        """Why the episode ended: a value of `rollyard.FinishReason`."""
        return str(self.row["finish_reason"])

    @property
    def items(self) -> list[Json]:
        """The model's output and the results of its tool calls, in order."""
        return list(self.row["response"]["output"])

    @property
    def tool_outputs(self) -> list[Any]:
        """The results of the tool calls, as the model read them."""
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
    """Run one episode of `row` in the environment, with a scripted model that returns `turns`.

    `environment`: a class, or the folder of an environment. `agent`: by default the game agent, which stops when a tool
    returns `done`, or for turn-based environments the turn agent. `models`: further scripted model servers by name,
    such as a judge.

    Raises Failure if a collection would record a failure: BadTask, an exception in the environment, a reward that is
    not a number. Raises OperatorError for settings that the environment or the agent does not have.
    """
    kind = _environment(environment)
    script = Script(turns)
    names = {"environment": "environment", "model": "policy_model"}
    make = {
        names["environment"]: environment_server(kind, settings or {}),
        names["model"]: script.model,
        "agent": agent_server(agent or _agent_for(kind), agent_settings or {}, **names),
        **{name: Script(replies).model for name, replies in (models or {}).items()},
    }
    async with in_process_servers(make) as servers:
        return Rollout(await servers.run(row), script.requests)


def load(folder: str | Path) -> Any:
    """Load the environment, agent or model server class from the `app.py` in its folder, as a run does.

    Raises OperatorError if the folder does not contain a valid server.
    """
    path = Path(folder).resolve()
    if (family := path.parent.name) not in FAMILIES:
        raise OperatorError(f"the parent folder of {path} is named {family!r}; expected one of {', '.join(FAMILIES)}")
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
