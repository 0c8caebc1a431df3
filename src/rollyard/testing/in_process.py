"""Runs servers in this process and connects them without sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.agents.base import Agent, AgentSettings
from rollyard.records.run_types import Directory, Keys
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, serve
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import parse_settings

KEYS = Keys(run_id="test", secret="a secret of this test")
Maker = Callable[[Context], Server]


@dataclass
class InProcessServers:
    """Servers by name, reachable through `client`."""

    client: ServerClient
    servers: dict[str, Server]
    transport: LocalTransport

    async def post(self, server: str, path: str, body: Json, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Send a POST request and return the response, even if it reports an error."""
        return await self.client.send(f"http://{server}:1", path, orjson.dumps(body), 30.0, headers)

    async def run(self, row: Mapping[str, Any], agent: str = "agent") -> Json:
        """Send a row to the agent's `/run` and return the rollout. Raises Failure if the rollout fails."""
        answer: Json = orjson.loads((await self.client.post(agent, "/run", orjson.dumps(row), 30.0)).body)
        return answer


@contextlib.asynccontextmanager
async def in_process_servers(make: Mapping[str, Maker]) -> AsyncIterator[InProcessServers]:
    """Start the servers that the functions in `make` build, and stop them when the block ends."""
    async with contextlib.AsyncExitStack() as started:
        transport = LocalTransport(HttpTransport())
        started.push_async_callback(transport.close)

        async def directory() -> Directory:
            urls = {name: [f"http://{name}:1"] for name in make}
            return Directory(run_id=KEYS.run_id, servers=urls, families={}, settings={})

        client = ServerClient(transport, KEYS, AddressBook(directory), RetryPolicy(wait_s=0.2))
        servers = {name: build(Context(name, KEYS, client)) for name, build in make.items()}
        for name, server in servers.items():
            transport.mount(f"http://{name}:1", server, server.answer_locally)
        for server in servers.values():  # a lifespan may call the model servers
            await server.start()
            started.push_async_callback(server.stop)
        yield InProcessServers(client, servers, transport)


@contextlib.asynccontextmanager
async def in_process_server(kind: type[Server], **settings: Any) -> AsyncIterator[InProcessServers]:
    """Start one server of any family under the name `server`. Raises OperatorError for unknown settings."""
    checked = parse_settings(kind.Settings, settings, kind.__name__)
    async with in_process_servers({"server": lambda context: kind(checked, context)}) as servers:
        yield servers


def environment_server(environment: type[Environment[Any]], settings: Mapping[str, Any]) -> Maker:
    """Return a function that builds a server for `environment`. Raises OperatorError for unknown settings."""
    kind = serve(environment)
    checked = parse_settings(kind.Settings, dict(settings), environment.__name__)
    return lambda context: kind(checked, context)


def agent_server(kind: type[Agent[Any]], settings: Mapping[str, Any], *, environment: str, model: str) -> Maker:
    """Return a function that builds an agent. `environment` and `model` are the names of the servers that it uses.

    Raises OperatorError for unknown settings.
    """
    refs = {"resources_server": {"name": environment}, "model_server": {"name": model}}
    checked = parse_settings(kind.Settings, {**refs, **settings}, kind.__name__)
    assert isinstance(checked, AgentSettings)
    return lambda context: kind(checked, context)
