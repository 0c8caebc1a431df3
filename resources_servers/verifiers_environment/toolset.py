"""The tools of a verifiers Toolset, called in this process.

verifiers itself starts a process for each toolset, and synchronises the rollout's state with it over HTTP. Here, the
toolset reads the state of the episode that calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rollyard.records.optional import load
from rollyard.records.types import Json
from rollyard.resources_servers.base import InvalidToolCall

_STATE: ContextVar[Any] = ContextVar("verifiers_state")
"""The state of the episode whose tool is running."""


@dataclass(frozen=True)
class OpenToolset:
    """A toolset that is set up, and its tools by the names under which the model calls them."""

    toolset: Any
    server: Any
    names: dict[str, str]
    """Advertised name -> the tool's own name."""
    tools: Sequence[Json]

    async def call(self, name: str, arguments: Json, state: Any) -> str:
        """Call a tool and return its text. Raises InvalidToolCall if it fails, as the error is for the model."""
        errors = load("mcp.server.mcpserver.exceptions", "verifiers", "a toolset")
        token = _STATE.set(state)
        try:
            result = await self.server.call_tool(self.names[name], arguments)
        except errors.ToolError as error:
            raise InvalidToolCall(str(error)) from error
        finally:
            _STATE.reset(token)
        text = "\n".join(part.text for part in result.content if getattr(part, "type", "") == "text")
        if result.is_error:
            raise InvalidToolCall(text)
        return text

    async def close(self) -> None:
        """Release what the toolset's setup opened."""
        await self.toolset._exit_stack.aclose()


async def toolset_of(toolset: Any, data: Any) -> OpenToolset:
    """Set up a toolset for the data of a task; None for a toolset that all tasks share."""
    mcp = load("mcp.server.mcpserver", "verifiers", "a toolset")

    async def read_state() -> Any:
        return _STATE.get()

    async def write_state(before: bytes) -> None:
        """The tool has changed the episode's own state object."""

    # verifiers' channel to the process of the rollout; here it is this process.
    toolset._pull_state, toolset._push_state = read_state, write_state
    await toolset.setup()
    if data is not None:
        await toolset.setup_task(data)
    prefix = f"{toolset.server_name}_" if toolset.server_name else ""
    server = mcp.MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    listed = await server.list_tools()
    tools = [
        {
            "type": "function",
            "name": prefix + found.name,
            "description": found.description or found.name,
            "parameters": found.input_schema,
            "strict": False,
        }
        for found in listed
    ]
    return OpenToolset(toolset, server, {prefix + found.name: found.name for found in listed}, tools)
