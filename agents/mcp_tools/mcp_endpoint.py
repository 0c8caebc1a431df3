"""Finds an environment's MCP server, and opens it for an episode."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from rollyard.agents.mcp_tools.mcp_client import McpClient
from rollyard.agents.tool_answers import ToolAnswer
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.client import ServerClient
from rollyard.services.http.session import Session

DEFAULT_PATH = "/mcp"


@dataclass(frozen=True, slots=True)
class McpTools:
    """The tools of one episode's MCP server."""

    client: McpClient
    tools: list[Json]
    names: frozenset[str] = field(default=frozenset())

    async def call(self, name: str, arguments: Json) -> ToolAnswer:
        return await self.client.call(name, arguments)


async def open_tools(session: Session, metadata: Any, timeout_s: float) -> McpTools:
    """Open the MCP server that `/seed_session` announced, and list its tools.

    `metadata` is the `mcp` of its response: `{"url_path": "/mcp", "headers": {...}}`. Raises Failure if it is invalid,
    or if the server does not list its tools.
    """
    given = metadata if isinstance(metadata, dict) else None
    path = (given or {}).get("url_path", DEFAULT_PATH)
    headers = {} if (announced := (given or {}).get("headers")) is None else announced
    texts = isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())
    if given is None or not isinstance(path, str) or not texts:
        # The headers are a secret of the session.
        detail = f"/seed_session returned mcp with url_path {path!r:.100}; expected {{url_path: text, headers: object}}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=session.server)
    client = McpClient(session, f"/{path.lstrip('/')}", headers, timeout_s)
    try:
        await client.open()
        tools = await client.tools()
    except Failure:
        with contextlib.suppress(Failure):
            await client.close()
        raise
    return McpTools(client, tools, frozenset(tool["name"] for tool in tools))


class McpProbe:
    """Whether an environment serves MCP at `/mcp`, which it need not announce. One probe serves all episodes."""

    def __init__(self, client: ServerClient, server: str) -> None:
        self._client = client
        self._server = server
        self._lock = asyncio.Lock()
        self._found: bool | None = None

    async def found(self, timeout_s: float) -> bool:
        """Return True if `/mcp` is an MCP server, even one that reports an error."""
        async with self._lock:
            if self._found is None:
                self._found = await self._probe(timeout_s)
        return self._found

    async def _probe(self, timeout_s: float) -> bool:
        # A session of its own: an environment that takes every path for a tool may record the call.
        try:
            return await McpClient(Session(self._client, self._server), DEFAULT_PATH, {}, timeout_s).responds()
        except Failure as failure:
            if failure.kind in (FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST):
                raise
            return False
