"""Targets that real servers read, in this process: what clients, engines, models, environments and agents send.

Each answer must be a result or a documented refusal. An exception that nobody expected is a failure of the kind
`server_error` that points to the log; it, and a traceback, must never be the answer to what the other side sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal, TypeVar

import orjson
import uvicorn
from pydantic import Field

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.errors import Failure
from rollyard.records.rewards import is_reward
from rollyard.records.run_types import Directory
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.access import Peers
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient
from rollyard.services.http.connection_pool import HttpLimits, InvalidResponse, ResponseReader
from rollyard.services.http.listener import BoundedProtocol, Listener, ListenerLimits
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import HttpResponse, Receive, Scope, Send
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.rollouts.run_answer import RESPONSE_BYTES_HEADER, encode_line, parse_row
from rollyard.services.server.app import Context
from rollyard.testing import KEYS, Maker, Script, Turn, agent_server, calls, environment_server
from tests.fuzz.texts import pieces
from tests.support.scripted_engine import COMPLETION, chunks

T = TypeVar("T")


class Counter(Environment[EnvironmentSettings]):
    """An environment with a tool for each kind of argument."""

    user_template = "{question}"

    @tool
    async def step(
        self, action: Literal["up", "down"], times: int = Field(1, ge=1, le=9), note: str | None = None
    ) -> str:
        """Move."""
        return f"{action} {times} {note}"

    @tool
    async def anything(self, value: Any = None, options: dict[str, list[float]] | None = None) -> Any:
        """Return the value."""
        return value if options is None else [value, options]

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(response.text == "right"))


class Fixed:
    """An app that answers each path with fixed bytes, as software of others might."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self.answers = dict(answers)
        self.content_type = b"application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", self.content_type)]
        body = self.answers.get(scope["path"], b"{}")
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Stack:
    """Servers under their names, and apps of others, without sockets."""

    def __init__(self, made: Mapping[str, Maker], others: Mapping[str, Fixed]) -> None:
        transport = LocalTransport(HttpTransport())
        urls = {name: [f"http://{name}:1"] for name in (*made, *others)}
        foreign = {f"http://{name}:1": "1" for name in others}

        async def directory() -> Directory:
            return Directory(run_id=KEYS.run_id, servers=urls, families={}, settings={}, foreign=foreign)

        self.others = others
        self.client = ServerClient(transport, KEYS, AddressBook(directory), RetryPolicy(wait_s=0.0))
        self.servers = {name: make(Context(name, KEYS, self.client)) for name, make in made.items()}
        for name, server in self.servers.items():
            transport.mount(f"http://{name}:1", server, server.answer_locally)
        for name, app in others.items():
            transport.mount(f"http://{name}:1", app)

    def post(self, server: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> HttpResponse:
        return run(self.client.send(f"http://{server}:1", path, body, 30.0, headers))


@cache
def loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return loop().run_until_complete(coroutine)


def check(answer: HttpResponse) -> HttpResponse:
    assert b"traceback in the log of" not in answer.body and b"Traceback (most recent" not in answer.body, answer
    assert answer.status != 500, answer
    return answer


REQUEST = b'{"input": "Hello", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9, "stream": %b}'
STREAM = b"".join(
    event if isinstance(event, bytes) else b"data: %b\n\n" % orjson.dumps(event)
    for event in chunks({"content": "hello"})
)
DIALECTS = ("/v1/responses", "/v1/chat/completions", "/v1/messages")


@cache
def _models() -> Stack:
    """A model server with a chat engine, and one that passes the Responses API on."""
    endpoint: Json = {"base_url": "http://engine:1/v1", "model": "m", "max_attempts": 1, "retry_pause_s": 0.0}
    made: dict[str, Maker] = {
        "chat": lambda context: VllmModel(VllmModelSettings(**endpoint), context),
        "responses": lambda context: OpenaiModel(EndpointSettings(**endpoint), context),
    }
    return Stack(made, {"engine": Fixed({"/v1/chat/completions": orjson.dumps(COMPLETION)})})


def model_request(path: str, data: bytes) -> None:
    """A request of a client gets an answer, a stream or a problem."""
    stack = _models()
    engine = stack.others["engine"]
    is_stream = b'"stream":true' in data.replace(b" ", b"")
    engine.content_type = b"text/event-stream" if is_stream else b"application/json"
    engine.answers["/v1/chat/completions"] = STREAM if is_stream else orjson.dumps(COMPLETION)
    check(stack.post("chat", path, data))


def engine_answer(is_stream: bool, data: bytes) -> None:
    """What an engine sends becomes an answer or a problem of the endpoint, in each of the formats."""
    stack = _models()
    engine = stack.others["engine"]
    engine.content_type = b"text/event-stream" if is_stream else b"application/json"
    engine.answers = dict.fromkeys(("/v1/chat/completions", "/v1/responses"), data)
    body = REQUEST % (b"true" if is_stream else b"false")
    for server in ("chat", "responses"):
        for path in DIALECTS:
            answer = check(stack.post(server, path, body))
            if answer.status == 200 and not is_stream:
                assert isinstance(orjson.loads(answer.body), dict)


ROW: Json = {"question": "?", "responses_create_params": {"input": [{"role": "user", "content": "Hello"}]}}


@cache
def _episodes() -> Stack:
    """An agent between an environment of Rollyard and a model of others, and one between a model and one of others."""
    environment = environment_server(Counter, {})
    turns: list[Turn] = [calls("step", action="up"), "right"]
    made: dict[str, Maker] = {
        "counter": environment,
        "agent": agent_server(GameAgent, {"max_steps": 2}, environment="counter", model="odd_model"),
        "other_agent": agent_server(GameAgent, {"max_steps": 2}, environment="odd_environment", model="model"),
        "model": Script(lambda request: turns[len(request["input"]) > 1]).model,
    }
    verified = {"/verify": b'{"reward": 1.0}'}
    return Stack(made, {"odd_model": Fixed({}), "odd_environment": Fixed(verified)})


def _played(answer: HttpResponse) -> None:
    """The collector stores a rollout with a reward, or a failure with a name."""
    if check(answer).status == 200:
        row = parse_row(answer, "agent")
        assert is_reward(orjson.loads(encode_line(row, "agent"))["reward"])


def model_turn(data: bytes) -> None:
    """Whatever a model answers, with calls of tools that exist or not, is an episode or a named failure."""
    stack = _episodes()
    stack.others["odd_model"].answers["/v1/responses"] = data
    _played(stack.post("agent", "/run", orjson.dumps(ROW)))


def tool_result(data: bytes) -> None:
    """Whatever a tool returns, the model reads it, and the episode goes on to its verdict."""
    stack = _episodes()
    stack.others["odd_environment"].answers["/step"] = data
    answer = stack.post("other_agent", "/run", orjson.dumps(ROW))
    _played(answer)
    assert orjson.loads(answer.body).get("reward") == 1.0, answer


def tool_arguments(data: bytes) -> None:
    """The model reads what is wrong with its arguments."""
    stack = _episodes()
    seeded = stack.post("counter", "/seed_session", orjson.dumps(ROW))
    cookie = {"cookie": seeded.cookies[0].partition(";")[0]}
    for path in ("/step", "/anything"):
        check(stack.post("counter", path, data, cookie))
    stack.post("counter", "/close", b"{}", cookie)


def verify_request(data: bytes) -> None:
    for path in ("/seed_session", "/verify"):
        answer = check(_episodes().post("counter", path, data))
        for cookie in answer.cookies:
            _episodes().post("counter", "/close", b"{}", {"cookie": cookie.partition(";")[0]})


def run_answer(data: bytes) -> None:
    """The collector reads an agent's answer as a rollout with a finite reward, or as a named failure."""
    for headers in ({}, {RESPONSE_BYTES_HEADER: str(len(data) // 2)}):
        try:
            row = parse_row(HttpResponse(200, headers, data), "agent")
            line = encode_line(row, "agent")
        except Failure:
            continue
        assert b"\n" not in line and is_reward(orjson.loads(line)["reward"])


class _Wire(asyncio.Transport):
    """What a server writes to a connection."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)})
        self.sent = b""
        self.closing = False

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        self.sent += b"".join(list_of_data)

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Called when much has arrived."""

    def resume_reading(self) -> None:
        """Called when it has been read."""


_ITERATIONS = 30
"""Of the event loop, more than a request takes."""


@cache
def _listener() -> tuple[Listener, dict[str, Any]]:
    server = _episodes().servers["counter"]
    config = uvicorn.Config(server, interface="asgi3", ws="none", lifespan="off", log_config=None, access_log=False)
    options = {"peers": Peers(), "config": config, "server_state": uvicorn.Server(config).server_state, "app_state": {}}
    limits = HttpLimits(header_bytes=2048, headers=16, body_bytes=4096)
    return Listener("counter", ListenerLimits(limits, bodies_bytes=1 << 20), LoopLag(), server), options


async def _exchange(received: list[bytes]) -> bytes:
    problems: list[Json] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    listener, options = _listener()
    wire = _Wire()
    connection = BoundedProtocol(listener, **options)
    connection.connection_made(wire)
    for piece in received:
        if not wire.closing:
            connection.data_received(piece)
    for _ in range(_ITERATIONS):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(_ITERATIONS):
        await asyncio.sleep(0)
    assert not problems, problems
    assert not listener.held_bytes and not listener.connections
    return wire.sent


def http_request(data: bytes) -> None:
    """A server answers with HTTP, keeps nothing of a connection that has ended, and shows no traceback."""
    for received in ([data], pieces(data)):
        sent = run(_exchange(received))
        assert b"traceback in the log of" not in sent and b" 500 " not in sent.partition(b"\r\n")[0], sent
        if sent:
            reader = ResponseReader(HttpLimits())
            with suppress(InvalidResponse):  # a second response
                reader.feed(sent)
            assert reader.response is not None or sent.startswith(b"HTTP/1.1 100 "), sent
