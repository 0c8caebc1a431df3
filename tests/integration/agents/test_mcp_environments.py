"""Environments that offer their tools over MCP, and what an agent makes of their errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from tests.support.fixtures import failure_of
from tests.support.foreign_servers import TOKEN_KEYS, foreign_environment
from tests.support.in_process import Script, calls, says
from tests.support.scripted_engine import listening
from tests.support.waiting import short_s

ROW: Json = {"responses_create_params": {"input": "Weather?", "tools": []}, "city": "Paris"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"name": "get_weather", "description": "The weather.", "inputSchema": SCHEMA},
    {"name": "geo/where.is", "inputSchema": {"type": "object"}},
]
Reply = Callable[[Json], Any]


class McpEnvironment:
    """A foreign environment with /mcp. `replies` answers methods differently: a result, or a whole Response."""

    def __init__(
        self, replies: dict[str, Reply] | None = None, *, events: bool = False, announced: Any = "default"
    ) -> None:
        self.requests: list[tuple[dict[str, str], Json]] = []
        self.ended: list[tuple[str, str]] = []
        self.verified: Json = {}
        self.events = events
        self.replies: dict[str, Reply] = {
            "initialize": lambda _: {"protocolVersion": "2025-03-26", "capabilities": {}, "serverInfo": {}},
            "notifications/initialized": lambda _: Response(status_code=202),
            "tools/list": lambda _: {"tools": TOOLS},
            "tools/call": lambda params: {"content": [{"type": "text", "text": f"sunny {params['arguments']}"}]},
            **(replies or {}),
        }
        self.app = app = FastAPI()
        metadata = {"server_name": "weather", "url_path": "/mcp", "headers": {"X-Token": "t"}}
        self.metadata = metadata if announced == "default" else announced

        @app.post("/seed_session")
        async def seed_session(response: Response) -> Json:
            response.set_cookie("session", "s1")
            return {} if self.metadata is None else {"mcp": self.metadata}

        @app.post("/mcp")
        async def mcp(request: Request) -> Response:
            message = await request.json()
            self.requests.append((dict(request.headers), message))
            found = self.replies[message["method"]](message.get("params") or {})
            if isinstance(found, Response):
                return found
            reply = found if "error" in found else {"result": found}
            return self._encoded({"jsonrpc": "2.0", "id": message["id"], **reply}, message["method"])

        @app.delete("/mcp")
        async def end(request: Request) -> Json:
            self.ended.append((request.headers["mcp-session-id"], request.headers["x-token"]))
            return {}

        @app.post("/verify")
        async def verify(request: Request) -> Json:
            self.verified = await request.json()
            return {**self.verified, "reward": 1.0}

    def _encoded(self, reply: Json, method: str) -> Response:
        headers = {"mcp-session-id": "connection-1"} if method == "initialize" else {}
        if not self.events:
            return Response(orjson.dumps(reply), media_type="application/json", headers=headers)
        notice = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n'
        text = orjson.dumps(reply, option=orjson.OPT_INDENT_2)
        lines = b"".join(b"data: " + line + b"\n" for line in text.split(b"\n"))
        body = b": hello\n\n" + notice + b"event: message\n" + lines + b"\n"
        return Response(body, media_type="text/event-stream", headers=headers)

    @property
    def methods(self) -> list[str]:
        return [message["method"] for _, message in self.requests]


async def played(
    environment: McpEnvironment, turns: list[Any] | None = None, row: Json = ROW, **settings: Any
) -> tuple[Json, Script]:
    script = Script(turns or [[calls("get_weather", {"city": "Paris"})], [says("sunny")]])
    async with foreign_environment(environment.app, script, SimpleAgent, **settings) as stack:
        return await stack.run(row), script


def output(rollout: Json) -> Any:
    return rollout["response"]["output"][1]["output"]


def always(reply: Any) -> Reply:
    return lambda _: reply


@pytest.mark.parametrize("events", [False, True])
async def test_the_model_gets_the_servers_tools_and_its_calls_go_to_the_server(events: bool) -> None:
    environment = McpEnvironment(events=events)
    rollout, script = await played(environment)
    assert environment.methods == ["initialize", "notifications/initialized", "tools/list", "tools/call"]
    common = {"type": "function", "strict": False}
    assert script.requests[0]["tools"] == [
        {**common, "name": "get_weather", "description": "The weather.", "parameters": SCHEMA},
        {**common, "name": "geo/where.is", "parameters": {"type": "object"}},
    ]
    assert output(rollout) == "sunny {'city': 'Paris'}"
    assert environment.requests[3][1]["params"] == {"name": "get_weather", "arguments": {"city": "Paris"}}
    assert environment.verified["responses_create_params"]["tools"] == script.requests[0]["tools"]


async def test_requests_carry_the_episodes_cookie_the_announced_headers_and_what_the_server_chose() -> None:
    environment = McpEnvironment()
    await played(environment)
    first, last = environment.requests[0][0], environment.requests[-1][0]
    sent = {"cookie": "session=s1", "x-token": "t", "accept": "application/json, text/event-stream"}
    assert sent.items() <= first.items() and "mcp-session-id" not in first
    chosen = {"mcp-session-id": "connection-1", "mcp-protocol-version": "2025-03-26", "x-token": "t"}
    assert chosen.items() <= last.items()


async def test_the_connection_ends_with_the_episode_even_if_it_fails() -> None:
    environment = McpEnvironment()
    await played(environment)
    assert environment.ended == [("connection-1", "t")]
    failing = McpEnvironment({"tools/list": lambda _: {"tools": 5}})
    with pytest.raises(Failure):
        await played(failing)
    assert failing.ended == [("connection-1", "t")]


async def test_the_servers_own_authorization_is_sent_and_the_runs_token_is_not() -> None:
    announced = {"url_path": "/mcp", "headers": {"Authorization": "Bearer of-the-environment", "X-Token": "t"}}
    environment = McpEnvironment(announced=announced)
    await played(environment, keys=TOKEN_KEYS)
    assert {headers["authorization"] for headers, _ in environment.requests} == {"Bearer of-the-environment"}


async def test_the_pages_of_a_list_are_read_until_there_is_no_cursor() -> None:
    pages = {None: {"tools": TOOLS[:1], "nextCursor": "2"}, "2": {"tools": TOOLS[1:], "nextCursor": None}}
    environment = McpEnvironment({"tools/list": lambda params: pages[params.get("cursor")]})
    _, script = await played(environment)
    assert [tool["name"] for tool in script.requests[0]["tools"]] == ["get_weather", "geo/where.is"]


async def test_a_list_without_an_end_is_a_failure() -> None:
    environment = McpEnvironment({"tools/list": lambda _: {"tools": [], "nextCursor": "again"}})
    with pytest.raises(Failure, match="pages"):
        await played(environment)


async def test_a_name_that_is_no_path_is_called_too() -> None:
    environment = McpEnvironment()
    await played(environment, [[calls("geo/where.is", "")], [says("here")]])
    assert environment.requests[3][1]["params"] == {"name": "geo/where.is", "arguments": {}}


async def test_the_rows_own_tools_stay_and_are_called_by_path() -> None:
    environment = McpEnvironment()

    @environment.app.post("/dice")
    async def dice() -> Json:
        return {"value": 4}

    own = {"type": "function", "name": "dice", "parameters": {"type": "object"}, "strict": False}
    row = {"responses_create_params": {"input": "Go.", "tools": [own]}}
    rollout, script = await played(environment, [[calls("dice", {})], [says("4")]], row)
    assert [tool["name"] for tool in script.requests[0]["tools"]] == ["dice", "get_weather", "geo/where.is"]
    assert orjson.loads(output(rollout)) == {"value": 4}


TOOL_ERRORS: list[tuple[Any, str]] = [
    ({"content": [{"type": "text", "text": "no such city"}], "isError": True}, "no such city"),
    ({"error": {"code": -32602, "message": "Unknown tool: x"}}, '{"error":"Unknown tool: x"}'),
    ({"error": {"code": -32603, "message": "it broke"}}, '{"error":"it broke"}'),
    ({"error": "odd"}, '{"error":"odd"}'),
    (Response(b'{"detail":"bad"}', 400, media_type="application/json"), '{"detail":"bad"}'),
    (Response(b"broken", 500), "broken"),
]


async def test_an_error_of_a_tool_is_text_for_the_model() -> None:
    environment = McpEnvironment()
    script = Script([[calls("get_weather", {"city": "Paris"})], [says("sunny")]] * len(TOOL_ERRORS))
    async with foreign_environment(environment.app, script, SimpleAgent) as stack:
        for reply, words in TOOL_ERRORS:
            environment.replies["tools/call"] = always(reply)
            rollout = await stack.run(ROW)
            assert (output(rollout), rollout["reward"]) == (words, 1.0)


async def test_invalid_arguments_never_reach_the_server() -> None:
    invalid = ["{", "[1]", '{"city": NaN}', "null"]
    environment = McpEnvironment()
    script = Script([turn for one in invalid for turn in ([calls("get_weather", one)], [says("sorry")])])
    async with foreign_environment(environment.app, script, SimpleAgent) as stack:
        found = [output(await stack.run(ROW)) for _ in invalid]
    assert "tools/call" not in environment.methods
    assert all("JSON object" in text for text in found), found


PROBLEM = orjson.dumps({"type": "urn:rollyard:session_lost", "status": 410, "detail": "gone", "server": "inner"})
BROKEN: list[Any] = [
    {"error": {"code": -32603, "message": "it broke"}},
    {"error": {"code": -32602, "message": "bad version"}},
    Response(b"broken", 500),
    Response(b"not found", 404),
    Response(b"", 202),
    Response(b"plain"),
    Response(b"[]", media_type="application/json"),
    Response(b'{"jsonrpc":"2.0","id":99,"result":{}}', media_type="application/json"),
    Response(PROBLEM, 410, media_type="application/problem+json"),
]


async def failures(method: str, replies: list[Any]) -> tuple[list[Failure], Script]:
    """The failures of one episode for each of these replies to `method`; every episode must fail."""
    environment, found = McpEnvironment(), []
    script = Script([[calls("get_weather", {"city": "Paris"})]])
    async with foreign_environment(environment.app, script, SimpleAgent) as stack:
        for reply in replies:
            environment.replies[method] = always(reply)
            failure = await failure_of(stack.run(ROW))
            found.append(failure)
    return found, script


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_a_server_that_does_not_list_its_tools_is_a_failure_and_never_has_no_tools(method: str) -> None:
    found, script = await failures(method, BROKEN)
    assert {failure.problem.server for failure in found} == {"environment", "inner"}
    assert not script.requests


async def test_a_malformed_list_of_tools_is_a_failure() -> None:
    lists: list[Any] = [None, {}, [1], [{"name": 5}], [{"name": ""}], [{"title": "x"}]]
    found, _ = await failures("tools/list", [{"tools": tools} for tools in lists])
    assert {failure.kind for failure in found} == {FailureKind.MALFORMED_ANSWER}


BROKEN_CALLS: list[Any] = [
    Response(b"plain"),
    Response(b"", 202),
    {"error": {"code": -32601, "message": "Method not found"}},
    {"error": {"code": -32600, "message": "Invalid request"}},
    Response(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}', 404),
    Response(PROBLEM, 410, media_type="application/problem+json"),
]


async def test_an_error_in_the_protocol_of_a_call_is_a_failure() -> None:
    _, script = await failures("tools/call", BROKEN_CALLS)
    assert len(script.requests) == len(BROKEN_CALLS)


@pytest.mark.parametrize("method", ["initialize", "notifications/initialized", "tools/list", "tools/call"])
async def test_a_stream_that_stays_open_after_the_reply_is_not_waited_for(method: str) -> None:
    class StayingOpen(McpEnvironment):
        def _encoded(self, reply: Json, method_of_reply: str) -> Response:
            response = super()._encoded(reply, method_of_reply)
            return staying_open(bytes(response.body), dict(response.headers)) if method_of_reply == method else response

    environment = StayingOpen(
        {"notifications/initialized": lambda _: staying_open(b"", {}, 202)} if "/init" in method else None, events=True
    )
    script = Script([[calls("get_weather", {"city": "Paris"})], [says("sunny")]])
    async with listening(environment.app) as url, foreign_environment(url, script, SimpleAgent) as stack:
        rollout = await stack.run(ROW)
    assert output(rollout) == "sunny {'city': 'Paris'}"


def staying_open(body: bytes, headers: dict[str, str], status: int = 200) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield body
        await asyncio.Event().wait()

    kept = {name: value for name, value in headers.items() if name != "content-length"}
    return StreamingResponse(chunks(), status, {**kept, "content-type": "text/event-stream"})


async def test_a_tool_that_hangs_costs_a_call_and_buys_no_second_attempt() -> None:
    environment = McpEnvironment()

    @environment.app.middleware("http")
    async def hang(request: Request, call_next: Any) -> Any:
        if b"tools/call" in await request.body():
            await asyncio.Event().wait()
        return await call_next(request)

    rollout, _ = await played(environment, tool_timeout_s=short_s())
    assert f"{short_s():g} s" in orjson.loads(output(rollout))["error"]


async def test_malformed_metadata_is_a_failure() -> None:
    malformed: list[Any] = [[], "x", 5, True, {"url_path": 5}, {"headers": []}, {"headers": {"a": 1}}]
    environment = McpEnvironment()
    async with foreign_environment(environment.app, Script([[says("never")]]), SimpleAgent) as stack:
        for environment.metadata in [*malformed, {"url_path": None}]:
            failure = await failure_of(stack.run(ROW))
            named = (failure.kind, failure.problem.server)
            assert named == (FailureKind.MALFORMED_ANSWER, "environment"), environment.metadata


async def test_a_redirect_to_the_path_with_a_slash_is_followed() -> None:
    environment = McpEnvironment(announced={"url_path": "mcp2", "headers": {}})
    server = next(route for route in environment.app.router.routes if getattr(route, "path", "") == "/mcp")

    @environment.app.post("/mcp2")
    async def redirect() -> Response:
        return Response(status_code=307, headers={"location": "http://environment:1/mcp2/"})

    environment.app.post("/mcp2/")(server.endpoint)  # type: ignore[attr-defined]
    rollout, _ = await played(environment)
    assert output(rollout) == "sunny {'city': 'Paris'}"


async def test_a_server_that_is_not_announced_is_found_once_for_rows_without_tools() -> None:
    environment = McpEnvironment(announced=None)
    script = Script([[calls("get_weather", {"city": "Paris"})], [says("sunny")]] * 2, repeat=False)
    async with foreign_environment(environment.app, script, SimpleAgent) as stack:
        rollouts = [await stack.run(ROW) for _ in range(2)]
    assert [output(rollout) for rollout in rollouts] == ["sunny {'city': 'Paris'}"] * 2
    assert environment.methods.count("initialize") == 3
    assert "cookie" not in environment.requests[0][0]  # the probe belongs to no episode


async def test_an_unannounced_server_that_reports_an_error_is_a_failure() -> None:
    environment = McpEnvironment({"initialize": lambda _: {"error": {"code": 1, "message": "no"}}}, announced=None)
    with pytest.raises(Failure, match="JSON-RPC error"):
        await played(environment)


@pytest.mark.parametrize("answer", [Response(b"{}"), Response(b"no", 404), Response(b"x", 500)])
async def test_an_environment_that_takes_every_path_for_a_tool_has_no_mcp_server(answer: Response) -> None:
    environment = McpEnvironment({"initialize": lambda _: answer}, announced=None)
    rollout, script = await played(environment, [[says("done")]])
    assert rollout["reward"] == 1.0
    assert script.requests[0].get("tools") == []
