"""Environments whose tools are known only when an episode is seeded, such as those that other projects define."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.resources_servers.environment import Environment, S
from rollyard.resources_servers.returned import storable, tool_result
from rollyard.resources_servers.tools import InvalidToolCall, as_invalid_tool_call


class EpisodeTools(Environment[S]):
    """Base class of environments in which each episode has its own tools. `@tool` methods work beside them."""

    def episode_tools(self) -> list[Json]:
        """Return the episode's tools as Responses function tools. Called after `seed`; a row's own tools win."""
        raise NotImplementedError(f"{type(self).__name__} must define episode_tools")

    async def call_episode_tool(self, name: str, arguments: Json) -> Any:
        """Call a tool and return its result, like a `@tool` method. `name` and `arguments` are the model's words:
        raise InvalidToolCall with a message for the model if there is no such tool or the arguments are wrong.
        """
        raise NotImplementedError(f"{type(self).__name__} must define call_episode_tool")


async def call_episode_tool(episode: EpisodeTools[Any], name: str, body: bytes) -> bytes:
    """Call an episode's tool with the model's JSON. Raises InvalidToolCall with a message for the model."""
    try:
        arguments = orjson.loads(body or b"{}")
    except ValueError as error:
        raise InvalidToolCall(f"Invalid call to {name[:200]}: the arguments are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise InvalidToolCall(f"Invalid call to {name[:200]}: found a JSON {kind}. Expected a JSON object.")
    with as_invalid_tool_call(f"the call to {name[:200]}", sized=bool(arguments)):
        return orjson.dumps(storable(tool_result(await episode.call_episode_tool(name, arguments))))


def with_episode_tools(added: Json, row: Mapping[str, Any], tools: Sequence[Json]) -> Json:
    """Return the additions of `/seed_session` with the episode's tools, unless the row has its own."""
    params = row.get("responses_create_params")
    if not tools or (isinstance(params, Mapping) and params.get("tools") is not None):
        return added
    additions = added.get("additions", {})
    return {"additions": {**additions, "tools": [*additions.get("tools", ()), *tools]}}
