"""Tools of other frameworks' environments: whatever they answer is text for the model, as NeMo Gym's agent gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from tests.support.fixtures import failure_of
from tests.support.foreign_servers import foreign_environment
from tests.support.in_process import Script, calls, says
from tests.support.waiting import short_s

ROW: Json = {"responses_create_params": {"input": "Go."}, "gold": 4}
PROBLEM = {"type": "urn:rollyard:session_lost", "title": "session lost", "status": 410, "detail": "gone"}


def environment(answer: Callable[[], Response]) -> FastAPI:
    """An environment whose only tool answers with `answer`."""
    app = FastAPI()

    @app.post("/seed_session")
    async def seed_session() -> Json:
        return {}

    @app.post("/tool")
    async def tool() -> Response:
        return answer()

    @app.post("/verify")
    async def verify(request: Request) -> Json:
        return {**await request.json(), "reward": 1.0}

    return app


async def played(answer: Callable[[], Response], **settings: Any) -> Json:
    """The rollout of a model that calls the tool once."""
    script = Script([[calls("tool", {})], [says("I see")]])
    async with foreign_environment(environment(answer), script, SimpleAgent, **settings) as stack:
        return await stack.run(ROW)


def output(rollout: Json) -> str:
    text: str = rollout["response"]["output"][1]["output"]
    return text


async def outputs(answers: list[Response]) -> list[tuple[str, float]]:
    """What the model got from a tool that answers so in one episode each, and the rewards of these episodes."""
    left = [*answers]
    script = Script([[calls("tool", {})], [says("I see")]] * len(answers))
    async with foreign_environment(environment(lambda: left.pop(0)), script, SimpleAgent) as stack:
        rollouts = [await stack.run(ROW) for _ in answers]
    assert not left
    return [(output(rollout), rollout["reward"]) for rollout in rollouts]


STATUSES = [400, 401, 403, 404, 405, 409, 413, 418, 422, 429, 500, 501, 502, 503, 504]
BODIES = [
    (b'{"detail":"no such table"}', "application/json"),
    (b"\"ValueError('x')\"", "application/json"),
    (b"Internal Server Error", "text/plain"),
    (b"<html>bad gateway</html>", "text/html"),
    (b'{"detail":', "application/json"),
    (b"", "application/json"),
    (orjson.dumps({"title": "Not found", "status": 404}), "application/problem+json"),
    (orjson.dumps(PROBLEM), "application/problem+json"),
]


async def test_an_error_of_a_tool_reaches_the_model_as_the_body_of_the_response() -> None:
    """Every status, and every body with one of each class of statuses: refused, busy, broken."""
    cases = [(status, *BODIES[number % len(BODIES)]) for number, status in enumerate(STATUSES)]
    cases += [(status, *body) for body in BODIES for status in (404, 429, 503)]
    found = await outputs([Response(body, status, media_type=media_type) for status, body, media_type in cases])
    for case, result in zip(cases, found, strict=True):
        assert result == (case[1].decode(), 1.0), case


async def test_the_answer_of_a_tool_reaches_the_model_unchanged() -> None:
    bodies = [b'"text"', b'{"a": 1}', b"plain", b"[1, 2]", b"na\xc3\xafve", b"\xff"]
    found = await outputs([Response(body) for body in bodies])
    assert [text for text, _ in found] == [body.decode(errors="replace") for body in bodies]


async def test_a_failure_that_a_rollyard_server_behind_the_environment_reports_stays_a_failure() -> None:
    problem = orjson.dumps({**PROBLEM, "server": "sandbox"})
    failure = await failure_of(played(lambda: Response(problem, 410, media_type="application/problem+json")))
    assert (failure.kind, failure.problem.server) == (FailureKind.SESSION_LOST, "sandbox")


async def test_a_redirect_is_a_failure_of_the_environment() -> None:
    failure = await failure_of(played(lambda: Response(b"", 302, headers={"location": "http://elsewhere/"})))
    assert (failure.kind, failure.problem.server) == (FailureKind.SERVER_ERROR, "environment")


def hanging(path: str) -> FastAPI:
    """An environment in which one path never answers."""
    app = environment(lambda: Response(b"{}"))

    @app.middleware("http")
    async def hang(request: Request, call_next: Any) -> Any:
        if request.url.path == path:
            await asyncio.Event().wait()
        return await call_next(request)

    return app


async def test_a_tool_that_hangs_costs_a_call_and_buys_no_second_attempt() -> None:
    script = Script([[calls("tool", {})], [says("I see")]])
    async with foreign_environment(hanging("/tool"), script, SimpleAgent, tool_timeout_s=short_s()) as stack:
        rollout = await stack.run(ROW)
    assert f"{short_s():g} s" in orjson.loads(output(rollout))["error"]
    assert rollout["reward"] == 1.0


@pytest.mark.parametrize("path", ["/seed_session", "/verify"])
async def test_an_environment_that_hangs_is_a_timeout_of_the_environment(path: str) -> None:
    script = Script([[says("I see")]])
    async with foreign_environment(hanging(path), script, SimpleAgent, tool_timeout_s=short_s()) as stack:
        failure = await failure_of(stack.run(ROW))
    assert (failure.kind, failure.problem.server) == (FailureKind.TIMEOUT, "environment")


async def test_a_tool_whose_connection_breaks_is_a_failure_and_is_not_called_again() -> None:
    called = []

    def broken() -> Response:
        called.append(1)
        raise Failure(FailureKind.CONNECTION_LOST, "the connection broke")

    failure = await failure_of(played(broken))
    assert (failure.kind, called) == (FailureKind.CONNECTION_LOST, [1])


async def test_a_malformed_verdict_is_a_failure_and_never_a_reward() -> None:
    app, bodies = FastAPI(), [b"[]", b"plain", b'{"reward": "1"}', b'{"reward": NaN}', b"{}"]

    @app.post("/seed_session")
    async def seed_session() -> Json:
        return {}

    @app.post("/verify")
    async def verify() -> Response:
        return Response(bodies[0])

    async with foreign_environment(app, Script([[says("4")]]), SimpleAgent) as stack:
        while bodies:
            failure = await failure_of(stack.run(ROW))
            named = (failure.kind, failure.problem.server)
            assert named == (FailureKind.MALFORMED_ANSWER, "environment"), bodies[0]
            del bodies[0]
