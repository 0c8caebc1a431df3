"""Servers wired together in this process without sockets: for tests of one world, one agent, one scripted model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.agents.base import Agent, AgentSettings
from rollyard.resources_servers.base import Environment, serve
from rollyard.responses_api_models.base import ModelServer
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient
from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpResponse, HttpTransport, LocalTransport
from rollyard.services.run_types import Directory, Keys
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Json

KEYS = Keys(run_id="test", secret="a secret of this test")


@dataclass
class Wired:
    """Servers by name, reachable through `client`."""

    client: ServerClient
    servers: dict[str, Server]
    transport: LocalTransport

    async def post(self, server: str, path: str, body: Json, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """POST, whatever the status of the answer."""
        return await self.client.send(f"http://{server}:1", path, orjson.dumps(body), 30.0, headers)

    async def run(self, row: Json, agent: str = "agent") -> Json:
        """A row through the agent; the rollout. Raises Failure."""
        answer: Json = orjson.loads((await self.client.post(agent, "/run", orjson.dumps(row), 30.0)).body)
        return answer


@contextlib.asynccontextmanager
async def wired(make: Mapping[str, Callable[[Context], Server]]) -> AsyncIterator[Wired]:
    """Start the servers that `make` builds, by name; stop them at the end."""
    transport = LocalTransport(HttpTransport())

    async def directory() -> Directory:
        urls = {name: [f"http://{name}:1"] for name in make}
        return Directory(run_id=KEYS.run_id, servers=urls, families={}, settings={})

    client = ServerClient(transport, KEYS, AddressBook(directory), RetryPolicy(wait_s=0.2))
    servers = {name: build(Context(name, KEYS, client)) for name, build in make.items()}
    for name, server in servers.items():
        transport.mount(f"http://{name}:1", server)
        await server.start()
    try:
        yield Wired(client, servers, transport)
    finally:
        for server in servers.values():
            await server.stop()
        await transport.close()


def environment(environment: type[Environment[Any]], **settings: Any) -> Callable[[Context], Server]:
    """A world that hosts `environment`."""
    build = serve(environment)
    return lambda context: build(build.Settings(**settings), context)


def agent(kind: type[Agent[Any]], **settings: Any) -> Callable[[Context], Server]:
    """An agent between the servers named `world` and `model`."""
    refs = {"resources_server": {"name": "world"}, "model_server": {"name": "model"}}
    chosen = kind.Settings.model_validate({**refs, **settings})
    assert isinstance(chosen, AgentSettings)
    return lambda context: kind(chosen, context)


@dataclass
class Script:
    """What a scripted model says, turn by turn, and what it was asked."""

    turns: list[list[Json]]
    asked: list[Json] = field(default_factory=list)
    status: str = "completed"
    incomplete: Json | None = None

    def model(self, context: Context) -> Server:
        """The model server that follows this script; the turn is the number of model items in the request."""
        script = self

        class Scripted(ModelServer[ServerSettings]):
            """Says what it was told to."""

            async def responses(self, request: Json, call: RawRequest) -> Json:
                """The next turn of the script."""
                script.asked.append(request)
                turn = script.turns[min(len(script.asked), len(script.turns)) - 1]
                return {
                    "id": "resp_1",
                    "object": "response",
                    "created_at": 0,
                    "model": "scripted",
                    "status": script.status,
                    "incomplete_details": script.incomplete,
                    "output": turn,
                    "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12},
                    "parallel_tool_calls": True,
                    "tool_choice": "auto",
                    "tools": [],
                }

        return Scripted(ServerSettings(), context)


def says(text: str) -> Json:
    """A message of the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}


def calls(name: str, arguments: Any, call_id: str = "c1") -> Json:
    """A tool call of the model; arguments that are no string are written as JSON."""
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {"id": call_id, "type": "function_call", "call_id": call_id, "name": name, "arguments": text}
