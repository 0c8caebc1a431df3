"""Verdicts for callers that opened no session, and sessions of callers that never close theirs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban
from rollyard.services.http.request import HttpResponse
from tests.support.in_process import InProcessServers, environment, in_process_servers, says
from tests.support.waiting import until

ROW: Json = {
    "responses_create_params": {"input": "What is 6 times 7?", "field_of_a_later_api": {"x": 1}},
    "expected_answer": "42",
    "kept": [1],
}


class Exact(Environment[EnvironmentSettings]):
    """Compares the text with the gold answer."""

    closed: list[str] = []  # noqa: RUF012 - read by tests

    def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
        super().__init__(task, settings)
        if "expected_answer" not in task:
            raise BadTask("expected_answer is missing")

    async def verify(self, response: Verification) -> Verdict:
        if response.text == "raise":
            raise RuntimeError("the grader is broken")
        return Verdict(reward=float(response.text == self.task["expected_answer"]), extracted_answer=response.text)

    async def close(self) -> None:
        Exact.closed.append(self.task["expected_answer"])


class Counting(Exact):
    """Has a tool, so that its verdict may depend on what was played."""

    @tool
    async def add(self) -> str:
        return "added"


class Declared(Counting):
    """Has a tool, but states that its verdict does not depend on it."""

    stateless = True


class Seeded(Exact):
    """Adds to the conversation."""

    async def seed(self) -> list[Json]:
        return [{"role": "user", "content": "Go."}]


def answered(text: str) -> Json:
    return {"response": {"id": "r", "object": "response", "output": [says(text)]}}


async def post(stack: InProcessServers, path: str, body: Json, cookie: str = "") -> HttpResponse:
    """A request of a foreign client, without Rollyard's headers."""
    headers = {"cookie": cookie} if cookie else {}
    return await stack.transport.send("POST", f"http://environment:1{path}", orjson.dumps(body), headers, 5.0)


async def seeded(stack: InProcessServers, row: Json) -> str:
    return (await post(stack, "/seed_session", row)).cookies[0].partition(";")[0]


def sessions(stack: InProcessServers) -> int:
    return stack.servers["environment"].sessions


@pytest.mark.parametrize(("text", "reward"), [("42", 1.0), ("41", 0.0)])
@pytest.mark.parametrize("kind", [Exact, Declared])
async def test_a_row_with_its_gold_answer_is_verified_without_a_session(kind: Any, text: str, reward: float) -> None:
    async with in_process_servers({"environment": environment(kind)}) as stack:
        answer = await post(stack, "/verify", {**ROW, **answered(text)})
        assert (answer.status, sessions(stack)) == (200, 0)
    verdict = orjson.loads(answer.body)
    assert verdict == {**ROW, **answered(text), "reward": reward, "extracted_answer": text}


async def test_the_episode_of_a_verdict_without_a_session_is_closed() -> None:
    Exact.closed.clear()
    async with in_process_servers({"environment": environment(Exact)}) as stack:
        await post(stack, "/verify", {**ROW, **answered("42")})
        failed = await post(stack, "/verify", {**ROW, **answered("raise")})
        assert (failed.status, sessions(stack), Exact.closed) == (500, 0, ["42", "42"])


@pytest.mark.parametrize(
    ("kind", "mode", "reason"),
    [
        (GrlSokoban, "unsupported", "depends on what was played"),
        *((kind, "unknown", "has tools, turns or a seed") for kind in (Counting, Seeded)),
        *((kind, "stateless", "") for kind in (Exact, Declared)),
    ],
)
async def test_an_environment_whose_verdict_may_depend_on_the_play_says_so_and_requires_a_session(
    kind: Any, mode: str, reason: str
) -> None:
    async with in_process_servers({"environment": environment(kind)}) as stack:
        told = await stack.transport.send("GET", "http://environment:1/reverify_mode", b"", {}, 5.0)
        answer = await post(stack, "/verify", {**ROW, **answered("42")})
    problem = orjson.loads(answer.body)
    assert (orjson.loads(told.body), answer.status) == (mode, 410 if reason else 200)
    if reason:
        assert problem["type"] == "urn:rollyard:session_lost"
        assert reason in problem["detail"] and "/seed_session" in problem["detail"]


@pytest.mark.parametrize("response", [None, 1, [], "text", {}, {"choices": []}, {"output": [], "status": "failed"}])
async def test_a_request_without_session_and_response_is_rejected(response: Any) -> None:
    async with in_process_servers({"environment": environment(Exact)}) as stack:
        answer = await post(stack, "/verify", {**ROW, "response": response})
        bad_task = await post(stack, "/verify", answered("42"))
    assert (answer.status, orjson.loads(answer.body)["type"]) == (400, "urn:rollyard:bad_request")
    assert (bad_task.status, orjson.loads(bad_task.body)["detail"]) == (422, "expected_answer is missing")


async def test_an_agent_of_rollyard_whose_session_is_lost_gets_no_verdict_on_its_row() -> None:
    async with in_process_servers({"environment": environment(Exact)}) as stack:
        answer = await stack.post("environment", "/verify", {**ROW, **answered("42")}, {"x-rollyard-session-end": "1"})
    assert answer.status == 410


async def test_the_session_of_a_foreign_client_ends_with_its_verdict_if_that_names_its_row() -> None:
    async with in_process_servers({"environment": environment(Exact)}) as stack:
        cookie = await seeded(stack, ROW)
        verdicts = [orjson.loads((await post(stack, "/verify", answered("42"), cookie)).body) for _ in range(2)]
        assert [verdict["reward"] for verdict in verdicts] == [1.0, 1.0]
        assert verdicts[0]["responses_create_params"] == ROW["responses_create_params"]
        assert sessions(stack) == 1
        first = await post(stack, "/verify", {**ROW, **answered("42")}, cookie)
        assert (first.status, sessions(stack)) == (200, 0)
        second = await post(stack, "/verify", {**ROW, **answered("42")}, cookie)
        assert orjson.loads(second.body) == orjson.loads(first.body)


async def test_a_verified_session_of_a_foreign_client_has_a_shorter_idle_limit() -> None:
    async with in_process_servers({"environment": environment(Counting, verified_idle_s=0.04)}) as stack:
        verified, playing = await seeded(stack, ROW), await seeded(stack, ROW)
        await post(stack, "/add", {}, playing)
        await post(stack, "/verify", {**ROW, **answered("42")}, verified)
        await until(lambda: sessions(stack) == 1)
        assert (await post(stack, "/add", {}, playing)).body == b'"added"'


async def test_a_session_is_closed_by_either_name_of_the_request() -> None:
    async with in_process_servers({"environment": environment(Counting)}) as stack:
        for path in ("/close", "/close_session"):
            answer = await post(stack, path, {}, await seeded(stack, ROW))
            assert (orjson.loads(answer.body), sessions(stack)) == ({"closed": True}, 0)


async def test_a_failed_verdict_is_a_row_for_a_foreign_collector_that_asks_for_it() -> None:
    async with in_process_servers({"environment": environment(Exact, failures_as_rows=True)}) as stack:
        answer = await post(stack, "/verify", {**ROW, **answered("raise")})
        own = await stack.post("environment", "/verify", {**ROW, **answered("raise")})
    row = orjson.loads(answer.body)
    assert (answer.status, own.status, "reward" in row) == (200, 500, False)
    assert (row["_ng_failure_class"], row["_ng_failure_terminal"], row["kept"]) == ("server_error", False, [1])
    assert row["_ng_failure"]["server"] == "environment" and "the grader is broken" in row["_ng_failure"]["detail"]
