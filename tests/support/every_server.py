"""Every server that Rollyard ships, each in this process and reached over ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import yaml
from fastapi import FastAPI

from rollyard.agents.base import Agent
from rollyard.agents.game_agent.app import GameAgent
from rollyard.agents.program_agent.app import ProgramAgent
from rollyard.agents.program_agent.endpoint import ProgramEndpoint, Visitor
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.agents.tools import ToolAnswer
from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.analysis.viewer.app import Viewer, ViewerSettings
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.series import files_as_series
from rollyard.cli.viewer import FoundRun, Replays
from rollyard.records.audit import Origin
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import RunError
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Turn, Verdict, Verification, tool
from rollyard.responses_api_models.builtin_model.app import BuiltinModel
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.config.plugins import load_server
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.server import Head
from rollyard.services.http.client import EPISODE_HEADER, SECRET_HEADER
from rollyard.services.http.listener import bind
from rollyard.services.http.request import (
    ASGIApp,
    HttpResponse,
    RawRequest,
    RawResponse,
    Receive,
    Scope,
    Send,
    raise_for_status,
)
from rollyard.services.http.transport import _call
from rollyard.services.interop.environment import ServedEnvironment, TaskList, tools_of
from rollyard.services.interop.openenv import openenv_app
from rollyard.services.interop.ors import ors_app
from rollyard.services.interop.served_app import listening_to_clients
from rollyard.services.responses.recorded_episode import OPEN, RECORDED, RecordingRequest
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings, parse_settings
from rollyard.testing import (
    KEYS,
    InProcessServers,
    Maker,
    Script,
    agent_server,
    calls,
    environment_server,
    in_process_servers,
)
from tests.support.fixtures import http_transport
from tests.support.rollout_files import random_rows, write
from tests.support.stacks import load_config
from tests.support.waiting import deadline_s

ENVIRONMENTS = (
    *("grl_sokoban", "gsm8k", "gymnasium_text", "harbor_task", "humaneval", "ifeval", "inspect_task", "math", "mbpp"),
    *("openenv_environment", "verifiers_environment"),
)
"""Their folders. The names stand here for tests.selection: it runs test-openapi when one of them changes."""
NEEDS = {"inspect_task": "inspect_ai", "verifiers_environment": "verifiers"}
"""Environments whose packages the development environment lacks, and the package by which to tell."""
EPISODE = "0123456789abcdef0123456789abcdef"
PROGRAM_KEY = "the key of this episode"


@dataclass(frozen=True)
class Opened:
    """A server that is running."""

    app: ASGIApp
    headers: Mapping[str, str] = field(default_factory=dict)
    """With which a caller that may do everything is known."""
    left: Callable[[], int] = lambda: 0
    """How many sessions are open, in it and in the servers behind it."""
    row: Json = field(default_factory=dict)
    """A task that it can play."""
    opens: tuple[str, ...] = ()
    """The path that opens a session, if it has any."""


class Door(Environment[EnvironmentSettings]):
    user_template = "{question}"

    @tool
    async def push(self, times: int) -> str:
        """Push the door."""
        return f"pushed {times} times"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


class Corridor(Environment[EnvironmentSettings]):
    user_template = "{question}"

    async def reset(self) -> tuple[str, Json]:
        return "a door", {}

    async def turn(self, text: str) -> Turn:
        return Turn("it opens", reward=1.0, terminated=True)

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


ROW: Json = {"question": "Open the door.", "responses_create_params": {"input": "Open the door."}}


def _turns(request: Json) -> str | Json:
    """Call a tool once if there is one, then answer."""
    was_called = b"function_call_output" in orjson.dumps(request.get("input"))
    return "It is open." if was_called or not request.get("tools") else calls("push", times=1)


def _model(context: Context) -> Server:
    return Script(_turns).model(context)


@contextlib.asynccontextmanager
async def _one_of(
    makers: Mapping[str, Maker], name: str, row: Json, opens: tuple[str, ...] = ()
) -> AsyncIterator[Opened]:
    async with in_process_servers(makers) as stack:
        servers = stack.servers

        def left() -> int:
            return sum(server.sessions for server in servers.values())

        servers[name].ready = True
        yield Opened(servers[name], left=left, row=row, opens=opens)


@contextlib.asynccontextmanager
async def _environment(name: str, folder: Path) -> AsyncIterator[Opened]:
    path = INSTALLED / "resources_servers" / name
    config = yaml.safe_load((path / "configs" / f"{name}.yaml").read_text())
    given = next(node["resources_servers"][name] for node in config.values() if "resources_servers" in node)
    settings = {key: value for key, value in given.items() if key != "entrypoint"}
    async with contextlib.AsyncExitStack() as stack:
        if name == "openenv_environment":
            settings["url"] = await stack.enter_async_context(_openenv_server())
        elif name == "verifiers_environment":
            settings["taskset"] = "counting_taskset"
            sys.path.append(str(INSTALLED / "tests/external/verifiers"))  # it imports tasksets outside a package
        kind = load_server("resources_servers", path, "app.py")
        parsed = parse_settings(kind.Settings, settings, name)
        row = orjson.loads((path / "data" / "example.jsonl").read_bytes().splitlines()[0])
        makers: dict[str, Maker] = {"environment": lambda context: kind(parsed, context)}
        yield await stack.enter_async_context(_one_of(makers, "environment", row, ("/seed_session",)))


@contextlib.asynccontextmanager
async def _openenv_server() -> AsyncIterator[str]:
    async with in_process_servers({"environment": environment_server(Door, {})}) as stack:
        app = openenv_app(await _served(stack), max_sessions=100, idle_s=60.0)
        sock = bind("127.0.0.1", 0)
        async with listening_to_clients(app, sock, "127.0.0.1", None):
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"


async def _served(stack: InProcessServers) -> ServedEnvironment:
    tools = await tools_of(stack.client, "environment")
    return ServedEnvironment(stack.client, "environment", "door", False, TaskList([ROW]), tools)


@contextlib.asynccontextmanager
async def _turn_based(folder: Path) -> AsyncIterator[Opened]:
    async with _one_of({"environment": environment_server(Corridor, {})}, "environment", ROW, ("/reset",)) as opened:
        yield opened


@contextlib.asynccontextmanager
async def _model_server(
    kind: type[Server], engine: Maker | None, settings: Json, folder: Path
) -> AsyncIterator[Opened]:
    parsed = parse_settings(kind.Settings, settings, kind.__name__)
    makers: dict[str, Maker] = {"policy": lambda context: kind(parsed, context)}
    async with _one_of({**makers, **({"engine": engine} if engine else {})}, "policy", ROW) as opened:
        yield opened


ENGINE: Json = {"base_url": "http://engine:1/v1", "api_key": "key", "model": "scripted", "retry_pause_s": 0.001}
QUICK: Json = {"total_timeout_s": 0.05, "max_attempts": 2}


class BrokenEngine(Server):
    """An engine that fails in another way at each call."""

    def __init__(self, context: Context) -> None:
        super().__init__(ServerSettings(), context)
        answers = [
            RawResponse(b"", 500),
            RawResponse(b"out of memory", 500, content_type=b"text/plain"),
            RawResponse(b"not JSON"),
            RawResponse(b"[1]"),
            RawResponse(b"{}"),
            RawResponse(b'{"choices": [], "output": []}'),
            RawResponse(b'{"choices": [{"message": 7}], "output": [7]}'),
            RawResponse(b'{"error": {"message": "no"}}', 400),
            RawResponse(b'{"error": "busy"}', 503),
            RawResponse(b"data: {", content_type=b"text/event-stream"),
        ]
        left = itertools.cycle(answers)

        async def fail(call: RawRequest) -> RawResponse:
            return next(left)

        self.route_rest(fail)


@contextlib.asynccontextmanager
async def _agent(
    kind: type[Agent[Any]], environment: type[Environment[Any]], settings: Json, folder: Path
) -> AsyncIterator[Opened]:
    makers = {
        "environment": environment_server(environment, {}),
        "model": _model,
        "agent": agent_server(kind, settings, environment="environment", model="model"),
    }
    async with _one_of(makers, "agent", ROW) as opened:
        yield opened


PROGRAM = """
import http.client, os, urllib.parse
url = urllib.parse.urlsplit(os.environ["URL"])
ask = http.client.HTTPConnection(url.netloc)
headers = {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"}
ask.request("POST", url.path + "/responses", '{"input": "hello"}', headers)
print(ask.getresponse().read())
"""


@contextlib.asynccontextmanager
async def _program_endpoint(folder: Path) -> AsyncIterator[Opened]:
    async with in_process_servers({"model": _model, "environment": environment_server(Door, {})}) as stack:
        endpoint = ProgramEndpoint(Context("programs", KEYS, stack.client))
        tools = await tools_of(stack.client, "environment")

        episode = {EPISODE_HEADER: EPISODE}
        opening = RecordingRequest(keep_s=600.0).model_dump_json().encode()
        raise_for_status(await stack.client.send("http://model:1", OPEN, opening, 30.0, episode), "model")

        async def ask(path: str, body: bytes) -> HttpResponse:
            answer = await stack.client.send("http://model:1", f"{RECORDED}{path}", body, 30.0, episode)
            return raise_for_status(answer, "model")

        async def use(name: str, arguments: Json) -> ToolAnswer:
            return ToolAnswer("it moves", False)

        endpoint.admit(EPISODE, Visitor(PROGRAM_KEY, ask, tools, use))
        endpoint.ready = True
        yield Opened(endpoint, {"authorization": f"Bearer {PROGRAM_KEY}"})


@contextlib.asynccontextmanager
async def _head(folder: Path) -> AsyncIterator[Opened]:
    config = load_config()
    async with in_process_servers({"other": _model}) as stack:
        registry = ServerRegistry(KEYS.run_id, config.servers, config.identity())
        registry.expect("policy_model#1")
        head = Head(ServerSettings(), Context("head", KEYS, stack.client), registry, config, folder)
        head.ready = True
        yield Opened(head, {SECRET_HEADER: KEYS.secret})


@contextlib.asynccontextmanager
async def _serve(make: Callable[[ServedEnvironment], FastAPI], folder: Path) -> AsyncIterator[Opened]:
    async with in_process_servers({"environment": environment_server(Door, {})}) as stack:
        app = make(await _served(stack))
        async with app.router.lifespan_context(app):
            environment = stack.servers["environment"]

            def left() -> int:
                return environment.sessions - len(app.state.sessions)

            yield Opened(app, {"x-session-id": "s1"}, left, {"row": ROW}, ("/create",))


@contextlib.asynccontextmanager
async def _viewer(folder: Path) -> AsyncIterator[Opened]:
    files = [(name, write(folder / f"{name}.jsonl", random_rows(5, 3))) for name in ("first", "second")]
    index = FileIndex(files)

    async def no_run() -> Any:
        raise RunError("there is no run here")

    async with http_transport() as transport:
        run = FoundRun(transport, no_run)
        series = files_as_series(files, [0, 1])
        viewer = Viewer(index, series, Replays([INSTALLED]), None, run, ViewerSettings("me"), lambda _: Origin())
        async with viewer:
            index.read_through()
            yield Opened(viewer.app)


Make = Callable[[Path], AbstractAsyncContextManager[Opened]]
EVERY_SERVER: dict[str, Make] = {
    "head": _head,
    **{
        name: partial(_environment, name)
        for name in ENVIRONMENTS
        if name not in NEEDS or importlib.util.find_spec(NEEDS[name])
    },
    "turn-based environment": _turn_based,
    "builtin_model": partial(_model_server, BuiltinModel, None, {}),
    "openai_model": partial(_model_server, OpenaiModel, _model, ENGINE),
    "vllm_model": partial(_model_server, VllmModel, _model, ENGINE),
    "openai_model, broken engine": partial(_model_server, OpenaiModel, BrokenEngine, {**ENGINE, **QUICK}),
    "vllm_model, broken engine": partial(_model_server, VllmModel, BrokenEngine, {**ENGINE, **QUICK}),
    "simple_agent": partial(_agent, SimpleAgent, Door, {}),
    "game_agent": partial(_agent, GameAgent, Door, {"max_steps": 3}),
    "turn_agent": partial(_agent, TurnAgent, Corridor, {}),
    "program_agent": partial(
        _agent,
        ProgramAgent,
        Door,
        {"program": [sys.executable, "-S", "-c", PROGRAM], "env": {"URL": "{base_url}", "KEY": "{api_key}"}},
    ),
    "program endpoint": _program_endpoint,
    "ng_serve openenv": partial(_serve, lambda served: openenv_app(served, max_sessions=100, idle_s=60.0)),
    "ng_serve ors": partial(_serve, lambda served: ors_app(served, version="1", max_sessions=100, idle_s=60.0)),
    "viewer": _viewer,
}
"""Those whose packages are installed here. Each needs an empty folder."""
SLOW = ("harbor_task", "humaneval", "mbpp", "program_agent")
"""They run programs."""


Headers = Sequence[tuple[bytes, bytes]]


async def document(opened: Opened) -> Json:
    """Return the server's OpenAPI document. The endpoint of programs does not serve its own."""
    if isinstance(opened.app, ProgramEndpoint):
        return opened.app.app.openapi()
    own = [(key.encode(), value.encode()) for key, value in opened.headers.items()]
    found: Json = (await ask(opened.app, "GET", "/openapi.json", own)).json()
    return found


async def ask(
    app: ASGIApp, method: str, path: str, headers: Headers = (), body: bytes = b"", query: bytes = b""
) -> httpx.Response:
    """Send one request over ASGI, as it stands: no client corrects it. Raises what the app raises."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "path": path, "query_string": query, "client": ("127.0.0.1", 1)}, receive, send)

    given = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    async with asyncio.timeout(deadline_s()):
        found = await _call(called, method, "/", body, {"host": "127.0.0.1", **given})
    request = httpx.Request(method, httpx.URL("http://127.0.0.1", raw_path=b"/"))
    answer = httpx.Response(found.status, headers=found.headers, content=found.body, request=request)
    answer.elapsed = timedelta(0)
    return answer


def faults_of(response: httpx.Response) -> str:
    """What is wrong with an answer whatever the request was; empty if nothing is."""
    status, kind, body = response.status_code, response.headers.get("content-type", ""), response.content
    if status == 500:
        return f"status 500: {body[:1000].decode()}"
    if b"Traceback (most recent call last)" in body or b"site-packages" in body:
        return f"a traceback: {body[:1000].decode()}"
    if body and not kind:
        return "a body without a content type"
    if status >= 400 and not _words(body):
        return f"status {status} without words: {body[:200]!r}"
    return ""


def _words(body: bytes) -> object:
    """What an error says, in each of the formats of our servers."""
    found = orjson.loads(body)
    error = found.get("error")
    return found.get("detail") or (error.get("message") if isinstance(error, dict) else error)


async def headers_with_session(opened: Opened) -> Headers:
    """The headers of a caller that has just opened a session; without the cookie if the server has none."""
    headers = [(name.encode(), value.encode()) for name, value in opened.headers.items()]
    headers.append((b"content-type", b"application/json"))
    for path in opened.opens:
        answer = await ask(opened.app, "POST", path, headers, orjson.dumps(opened.row))
        if cookie := answer.headers.get("set-cookie"):
            return [*headers, (b"cookie", cookie.partition(";")[0].encode())]
    return headers


async def close_sessions(opened: Opened, headers: Headers, *answers: httpx.Response) -> None:
    """Close the caller's session, and those that these answers have opened."""
    cookies = [value for name, value in headers if name == b"cookie"]
    cookies += [
        answer.headers["set-cookie"].partition(";")[0].encode() for answer in answers if "set-cookie" in answer.headers
    ]
    own = [pair for pair in headers if pair[0] != b"cookie"]
    for cookie in cookies if opened.opens else ():
        await ask(opened.app, "POST", "/close", [*own, (b"cookie", cookie)], b"{}")
