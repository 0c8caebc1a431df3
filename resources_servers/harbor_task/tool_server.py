"""MCP servers of a task that run in its box and speak over their standard input and output (`transport = "stdio"`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from rollyard.records.types import Json, items, mapping
from rollyard.resources_servers.base import InvalidToolCall
from rollyard.resources_servers.harbor_task.dockerfile import UnsupportedTask
from rollyard.resources_servers.harbor_task.harbor_box import TaskBox
from rollyard.resources_servers.harbor_task.task_folder import McpServer
from rollyard.services.sandbox.box import BoxEntry

_VERSION = "2025-06-18"
_START_S = 60.0
# Opened for both directions, a pipe neither blocks nor ends when the process on its other side does.
_START = 'mkdir -p "$0" && cd "$0" && rm -f in out && mkfifo in out && exec 3<>in 4<>out && { "$@" <&3 >&4 2>errors & }'
_SEND = 'cd "$0" && cat message >in'
_READ = 'cd "$0" && exec 3<>out && IFS= read -r -t "$1" line <&3 && printf "%s" "$line"'


class ToolServer:
    def __init__(self, box: TaskBox, server: McpServer) -> None:
        self.name = server.name
        self.tools: list[Json] = []
        """As function tools of the Responses API."""
        self._box = box
        self._command: Sequence[str] = (server.command or "", *server.args)
        self._folder = f"/tmp/.mcp/{server.name.replace('/', '_')}"
        self._number = 0

    async def start(self) -> None:
        """Raises UnsupportedTask if the server does not answer."""
        try:
            await self._box.run(("/bin/bash", "-c", _START, self._folder, *self._command), _START_S)
            about = {
                "protocolVersion": _VERSION,
                "capabilities": {},
                "clientInfo": {"name": "rollyard", "version": "1"},
            }
            await self._ask("initialize", about, _START_S)
            await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            found = items((await self._ask("tools/list", {}, _START_S)).get("tools"))
        except InvalidToolCall as error:
            raise UnsupportedTask(f"environment.mcp_servers: {self.name}: {error}") from error
        self.tools = [
            {
                "type": "function",
                "name": str(each.get("name")),
                "description": str(each.get("description") or ""),
                "parameters": mapping(each.get("inputSchema")) or {"type": "object", "properties": {}},
                "strict": False,
            }
            for each in map(mapping, found)
        ]

    async def call(self, name: str, arguments: Json, limit_s: float) -> str:
        """Return the text of the result. Raises InvalidToolCall, for the model, if there is none."""
        result = await self._ask("tools/call", {"name": name, "arguments": arguments}, limit_s)
        parts = [mapping(part) for part in items(result.get("content"))]
        texts = [str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts]
        return ("Error: " if result.get("isError") else "") + "\n".join(texts)

    async def _ask(self, method: str, params: Json, limit_s: float) -> Json:
        self._number += 1
        deadline = time.monotonic() + limit_s
        await self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while (left_s := deadline - time.monotonic()) > 0:
            read = ("/bin/bash", "-c", _READ, self._folder, f"{left_s:.3f}")
            found = await self._box.run(read, left_s + 5.0)
            if found.exit_code != 0:
                break
            try:
                answer: Any = orjson.loads(found.output)
            except ValueError as error:
                raise InvalidToolCall(f"the server's answer is too long, or not JSON: {found.output[:200]}") from error
            if mapping(answer).get("id") == self._number:  # others are notifications
                if refusal := mapping(mapping(answer).get("error")):
                    raise InvalidToolCall(str(refusal.get("message")))
                return mapping(mapping(answer).get("result"))
        printed = await self._box.run(("tail", "-c", "500", f"{self._folder}/errors"), 10.0)
        raise InvalidToolCall(f"the server did not answer {method} within {limit_s:g} s: {printed.output.strip()}")

    async def _send(self, message: Json) -> None:
        await self._box.box.put(
            [BoxEntry(path=f"{self._folder}/message", kind="file", data=orjson.dumps(message) + b"\n", mode=0o644)]
        )
        sent = await self._box.run(("/bin/bash", "-c", _SEND, self._folder), 10.0)
        if sent.exit_code != 0:
            raise InvalidToolCall(f"the server cannot be reached: {sent.output.strip()[-200:]}")
