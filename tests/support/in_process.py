"""Servers in this process: `rollyard.testing` with defaults for this project's own tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

from rollyard.agents.base import Agent
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment
from rollyard.services.server.app import Context, Server
from rollyard.testing import KEYS, InProcessServers, Maker, agent_server, environment_server, in_process_servers, says
from rollyard.testing import Script as StrictScript
from rollyard.testing import calls as call_item

__all__ = ["KEYS", "InProcessServers", "in_process_servers", "says"]


def environment(environment: type[Environment[Any]], **settings: Any) -> Callable[[Context], Server]:
    """A server that hosts `environment`."""
    return environment_server(environment, settings)


def episode_servers(
    hosted: type[Environment[Any]] | Maker, model: StrictScript | Maker, player: type[Agent[Any]], **settings: Any
) -> AbstractAsyncContextManager[InProcessServers]:
    """Servers named `environment`, `model` and `agent`; the settings are those of the agent."""
    own = environment(hosted) if isinstance(hosted, type) and issubclass(hosted, Environment) else cast(Maker, hosted)
    made = model.model if isinstance(model, StrictScript) else model
    return in_process_servers({"environment": own, "model": made, "agent": agent(player, **settings)})


def agent(kind: type[Agent[Any]], **settings: Any) -> Callable[[Context], Server]:
    """An agent between the servers named `environment` and `model`."""
    return agent_server(kind, settings, environment="environment", model="model")


@dataclass
class Script(StrictScript):
    """A script that repeats its last turn by default."""

    repeat: bool = True


def calls(name: str, arguments: Any, call_id: str = "c1") -> Json:
    return call_item(name, arguments, call_id)
