"""Sessions of other frameworks' environments: their cookies, and what they make of a row."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from tests.support.fixtures import failure_of
from tests.support.foreign_servers import TOKEN_KEYS, foreign_environment
from tests.support.in_process import Script, calls, says
from tests.support.waiting import deadline_s

ROW: Json = {"responses_create_params": {"input": "Go."}}


class Cookies:
    """An environment that sets and deletes cookies, and records those that it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.app = app = FastAPI()
        numbers = iter(range(1000))

        @app.middleware("http")
        async def record(request: Request, call_next: Any) -> Any:
            self.received.append((request.url.path, dict(request.cookies), dict(request.headers)))
            return await call_next(request)

        @app.post("/seed_session")
        async def seed_session(response: Response) -> Json:
            response.set_cookie("session", f"s{next(numbers)}", path="/", httponly=True)
            response.set_cookie("stale", "old")
            return {}

        @app.post("/tool")
        async def tool(response: Response) -> Json:
            response.set_cookie("tool", "t")
            response.delete_cookie("stale")
            return {}

        @app.post("/verify")
        async def verify(request: Request) -> Json:
            return {**await request.json(), "reward": 1.0}

    def cookies_of(self, path: str) -> list[dict[str, str]]:
        return [cookies for where, cookies, _ in self.received if where == path]


def tool_script() -> Script:
    return Script([[calls("tool", {})], [says("done")]])


async def test_cookies_of_the_seed_and_of_a_tool_are_kept_for_the_episode() -> None:
    environment = Cookies()
    async with foreign_environment(environment.app, tool_script(), SimpleAgent) as stack:
        await stack.run(ROW)
    assert environment.cookies_of("/seed_session") == [{}]
    assert environment.cookies_of("/tool") == [{"session": "s0", "stale": "old"}]
    assert environment.cookies_of("/verify") == [{"session": "s0", "tool": "t"}]


async def test_each_episode_has_cookies_of_its_own() -> None:
    environment = Cookies()
    script = Script([[says("done")]])
    async with foreign_environment(environment.app, script, SimpleAgent) as stack:
        await asyncio.gather(*(stack.run(ROW) for _ in range(8)))
    assert environment.cookies_of("/seed_session") == [{}] * 8
    assert {cookies["session"] for cookies in environment.cookies_of("/verify")} == {f"s{n}" for n in range(8)}


async def test_the_cookies_go_to_the_environment_and_to_no_other_server() -> None:
    environment, seen = Cookies(), list[dict[str, str]]()
    async with foreign_environment(environment.app, tool_script(), SimpleAgent) as stack:
        send = stack.transport.send

        async def record(
            method: str, url: str, body: bytes, headers: Any, timeout_s: float, channel: bool = False
        ) -> Any:
            if not url.startswith("http://environment:1"):
                seen.append(dict(headers))
            return await send(method, url, body, headers, timeout_s, channel)

        stack.transport.send = record  # type: ignore[method-assign]
        await stack.run(ROW)
    assert len(seen) >= 3
    assert not [headers for headers in seen if "cookie" in headers]


async def test_a_foreign_environment_gets_neither_the_runs_token_nor_rollyards_headers() -> None:
    environment = Cookies()
    async with foreign_environment(environment.app, tool_script(), SimpleAgent, keys=TOKEN_KEYS) as stack:
        await stack.run(ROW)
    names = {name for _, _, headers in environment.received for name in headers}
    assert "authorization" not in names
    assert not [name for name in names if name.startswith("x-rollyard")]


def answering(path: str, answer: Response) -> FastAPI:
    """An environment with one path."""
    app = FastAPI()

    @app.post(path)
    async def respond() -> Response:
        return answer

    return app


async def seed_failure(app: FastAPI, row: Json, kind: Any = SimpleAgent) -> Failure:
    script = Script([[says("never")]])
    async with foreign_environment(app, script, kind) as stack:
        failure = await failure_of(stack.run(row))
    assert not script.requests
    return failure


@pytest.mark.parametrize(("path", "kind"), [("/seed_session", SimpleAgent), ("/reset", TurnAgent)])
@pytest.mark.parametrize("status", [400, 422])
async def test_a_row_that_the_environment_rejects_is_not_tried_again(path: str, kind: Any, status: int) -> None:
    answer = Response(b'{"detail":[{"loc":["body","level"],"msg":"Field required"}]}', status)
    failure = await seed_failure(answering(path, answer), ROW, kind)
    assert (failure.kind, failure.terminal) == (FailureKind.BAD_TASK, True)
    assert (failure.problem.server, failure.problem.upstream_status) == ("environment", status)
    assert '"level"' in failure.problem.detail


@pytest.mark.parametrize(
    ("path", "kind", "hint"), [("/reset", SimpleAgent, "turn_agent"), ("/seed_session", TurnAgent, "simple_agent")]
)
async def test_the_wrong_agent_for_an_environment_is_named(path: str, kind: Any, hint: str) -> None:
    failure = await seed_failure(answering(path, Response(b"{}")), ROW, kind)
    assert failure.terminal
    assert hint in failure.problem.detail


async def test_an_environment_that_fails_to_seed_is_tried_again_later() -> None:
    failure = await seed_failure(answering("/seed_session", Response(b"broken", 500)), ROW)
    assert (failure.kind, failure.terminal) == (FailureKind.SERVER_ERROR, False)


async def test_a_bad_row_is_refused_with_what_is_wrong_with_it() -> None:
    rows: list[tuple[Json, str]] = [
        ({"idx": 3}, "idx"),
        ({}, "the row has nothing"),
        ({"question": "?", "answer": 4}, "the row has answer, question"),
        ({"responses_create_params": []}, "responses_create_params is a list"),
        ({"responses_create_params": {"input": 5}}, "responses_create_params.input is a number"),
        ({"responses_create_params": {"input": {}}}, "responses_create_params.input is an object"),
        ({"responses_create_params": {"input": ["a"]}}, "responses_create_params.input[0] is a string"),
        ({"responses_create_params": {"input": "a", "tools": {}}}, "responses_create_params.tools is an object"),
        ({"responses_create_params": {"input": "a", "tools": [None]}}, "responses_create_params.tools[0] is null"),
        ({"responses_create_params": {"input": []}}, "no responses_create_params.input"),
    ]
    script = Script([[says("never")]])
    async with foreign_environment(answering("/seed_session", Response(b"{}")), script, SimpleAgent) as stack:
        for row, words in rows:
            failure = await failure_of(stack.run(row))
            assert (failure.kind, failure.terminal) == (FailureKind.BAD_TASK, True)
            assert words in failure.problem.detail
    assert not script.requests


async def test_a_body_that_is_no_row_is_refused() -> None:
    bodies = {b"": "not JSON", b"[]": "a list", b'"row"': "a string", b"{": "not JSON", b"null": "null"}
    async with foreign_environment(FastAPI(), Script([[says("never")]]), SimpleAgent) as stack:
        for body, words in bodies.items():
            answer = await stack.client.send("http://agent:1", "/run", body, deadline_s())
            assert answer.status == 400
            assert words in orjson.loads(answer.body)["detail"]
