"""Tests an environment or an agent in one process, without sockets, with a scripted model.

    rollout = await play(Guess, {"secret": 42}, turns=[calls("guess", number=42)])
    assert rollout.reward == 1.0

Only the model is scripted. The servers, the HTTP API, the sessions and the verdict are real.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from rollyard.agents.base import Agent, AgentSettings
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.run_types import Directory, Keys
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, ResourcesServer, serve
from rollyard.responses_api_models.base import ModelServer
from rollyard.services.config.plugins import FAMILIES, load_server
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient
from rollyard.services.http.request import HttpResponse, RawRequest
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings, parse_settings

Turn = str | Json | Sequence[str | Json]
"""The model's output for one request: text, an item such as `calls(...)`, or several of these."""
Turns = Sequence[Turn | Callable[[Json], Turn]] | Callable[[Json], Turn]
"""The turns in order, or a function that returns the turn for a request. Each turn may also be such a function."""


def says(text: str) -> Json:
    """Return a message from the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}


def calls(name: str, arguments: Any = None, call_id: str | None = None, /, **named: Any) -> Json:
    """Return a tool call by the model, such as `calls("guess", number=42)`.

    `arguments` replaces the keyword arguments. It is an object, or the text that the model wrote, which may be invalid.
    """
    given = named if arguments is None else arguments
    text = given if isinstance(given, str) else orjson.dumps(given).decode()
    made = call_id or f"call_{uuid.uuid4().hex}"
    return {"id": made, "type": "function_call", "call_id": made, "name": name, "arguments": text}


@dataclass
class Script:
    """The turns of a scripted model, and the requests that it received."""

    turns: Turns
    requests: list[Json] = field(default_factory=list)
    status: str | None = "completed"
    incomplete: Json | None = None
    """`incomplete_details` for the status `incomplete`, such as `{"reason": "max_output_tokens"}`."""
    repeat: bool = False
    """Repeat the last turn; otherwise a request after the last turn is a failure."""

    def __post_init__(self) -> None:
        """Raises OperatorError if `turns` is a single turn instead of a list of turns."""
        if not callable(self.turns) and (isinstance(self.turns, str) or not isinstance(self.turns, Sequence)):
            found = f"{self.turns!r:.100}"
            raise OperatorError(f"turns is {found}; expected a list of turns, such as ['Hello.'], or a function")

    def model(self, context: Context) -> Server:
        """Return a model server that follows this script."""
        script = self

        class Scripted(ModelServer[ServerSettings]):
            async def responses(self, request: Json, call: RawRequest) -> Json:
                return script.response(request)

        return Scripted(ServerSettings(), context)

    def response(self, request: Json) -> Json:
        """Return the next turn as a Response object. Raises Failure if the script has no more turns."""
        self.requests.append(request)
        return {
            "id": f"resp_{len(self.requests)}",
            "object": "response",
            "created_at": 0,
            "model": "scripted",
            "status": self.status,
            "incomplete_details": self.incomplete,
            "output": _items(self._turn(request)),
            "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }

    def _turn(self, request: Json) -> Turn:
        if callable(self.turns):
            return self.turns(request)
        index = len(self.requests) - 1
        if index >= len(self.turns) and not (self.repeat and self.turns):
            written = f"{len(self.turns)} turn{'' if len(self.turns) == 1 else 's'}"
            detail = (
                f"the script has {written}, but the model was called {len(self.requests)} times: add a turn, such as a "
                "text without a tool call, which ends the episode"
            )
            raise Failure(FailureKind.BAD_REQUEST, detail)
        turn = self.turns[min(index, len(self.turns) - 1)]
        return turn(request) if callable(turn) else turn


def _items(turn: Turn) -> list[Json]:
    parts = [turn] if isinstance(turn, str | dict) else turn
    return [says(part) if isinstance(part, str) else part for part in parts]


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


@dataclass(frozen=True)
class Rollout:
    """The record of a finished episode."""

    row: Json
    requests: list[Json]

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
