"""Agents, environments and models as NeMo Gym 0.7's environment servers and collector call them."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.services.http.request import HttpResponse
from tests.support.in_process import InProcessServers, Script, calls, episode_servers, says

IDS: Json = {"episode_id": {"rollout_id": "3-0", "attempt": 0}, "task_id": {"taskset": "t", "task_id": "3"}}
PARAMS: Json = {"input": "Play."}
NAME = "resources-session-1"


class Adder(Environment[EnvironmentSettings]):
    def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
        super().__init__(task, settings)
        if task["level"] == 13:
            raise BadTask("level 13 does not exist")
        self.count = 0

    @tool
    async def add(self, amount: int = 1) -> Json:
        """Add to the count."""
        self.count += amount
        return {"count": self.count}

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(self.count))


class Greeting(Adder):
    async def seed(self) -> list[Any]:
        return [{"role": "user", "content": "Hello."}]


def servers(kind: Any = GameAgent, hosted: Any = Adder) -> Any:
    return episode_servers(hosted, Script([[calls("add", {"amount": 2})], [says("done")]]), kind)


def task(level: int) -> Json:
    return {"episode_id": IDS["episode_id"], "task": {"task_id": IDS["task_id"], "task_input": given(level)}}


def given(level: int) -> Json:
    return {"responses_create_params": PARAMS, "task_data": {"level": level}}


async def seeded(stack: InProcessServers, level: int = 1) -> HttpResponse:
    return await stack.post(
        "environment", "/seed_session", {"resources_session_id": NAME, **IDS, "task_data": {"level": level}}
    )


def cookies_of(answer: HttpResponse) -> str:
    return "; ".join(cookie.partition(";")[0] for cookie in answer.cookies)


async def test_a_task_is_played_and_answered_with_its_identity_and_no_key_of_a_collector() -> None:
    async with servers() as stack:
        answer = orjson.loads((await stack.post("agent", "/run", task(1))).body)
    result = answer.pop("result")
    assert answer == IDS
    assert (result["reward"], result["level"]) == (2.0, 1)
    assert not [name for name in result if name.startswith("_ng_")]


async def test_the_failure_of_a_task_is_part_of_the_answer_and_has_no_reward() -> None:
    async with servers() as stack:
        answer = await stack.post("agent", "/run", task(13))
    failure = orjson.loads(answer.body)["failure"]
    assert (answer.status, failure["failure_kind"], failure["terminal"]) == (200, "rollyard:bad_task", True)
    assert "level 13" in failure["failure_reason"] and b"reward" not in answer.body


async def test_a_row_whose_own_fields_have_the_same_names_is_played_as_a_row() -> None:
    async with servers() as stack:
        rollout = await stack.run({"responses_create_params": PARAMS, "level": 1, "episode_id": 4, "task": "add"})
    assert (rollout["reward"], rollout["task"], rollout["episode_id"]) == (2.0, "add", 4)


async def test_an_environment_server_plays_one_turn_in_sessions_whose_ids_it_has_chosen() -> None:
    async with servers(SimpleAgent) as stack:
        seed = await seeded(stack)
        assert orjson.loads(seed.body) == {"resources_session_id": NAME}
        assert cookies_of(await seeded(stack)) == cookies_of(seed)
        name, _, value = cookies_of(seed).partition("=")
        [url] = (await stack.client.book.current()).servers["environment"]
        access = {"kind": "direct_http", "name": "e", "required": True, "base_url": f"{url}/", "cookies": {name: value}}
        session: Json = {"agent_session_id": "a", "episode_id": IDS["episode_id"]}
        opened = await stack.post("agent", "/v1/agent_sessions", {**session, **IDS, "tool_accesses": [access]})
        assert orjson.loads(opened.body) == {"agent_session_id": "a"}
        cookie = {"cookie": cookies_of(opened)}
        played = await stack.post("agent", "/ng-rollout/3-0/v1/responses", PARAMS, cookie)
        assert len(orjson.loads(played.body)["output"]) == 3
        closed = await stack.post("agent", "/v1/agent_sessions/close", session, cookie)
        assert orjson.loads(closed.body) == {"agent_session_id": "a", "resources_cookies": {name: value}}
        body = {"level": 1, "responses_create_params": PARAMS, "response": orjson.loads(played.body)}
        verdict = await stack.post("environment", "/verify", body, {"cookie": cookies_of(seed)})
        assert orjson.loads(verdict.body)["reward"] == 2.0
        end = {"resources_session_id": NAME, "episode_id": IDS["episode_id"]}
        for _ in range(2):
            ended = await stack.post("environment", "/close_session", end)
            assert orjson.loads(ended.body) == {"resources_session_id": NAME}
        assert (await seeded(stack)).status == 410


@pytest.mark.parametrize("path", ["/close", "/close_session"])
@pytest.mark.parametrize("body", [{"note": "resources_session_id"}, {"a": {"resources_session_id": NAME}}])
async def test_a_close_that_names_no_session_at_its_top_level_closes_the_caller_s(path: str, body: Json) -> None:
    async with servers() as stack:
        cookie = {"cookie": cookies_of(await seeded(stack))}
        answer = await stack.post("environment", path, body, cookie)
    assert (answer.status, answer.body) == (200, b'{"closed":true}')


@pytest.mark.parametrize("more", [{"deep": orjson.loads(b"[" * 300 + b"]" * 300)}, task(1)])
async def test_a_task_that_cannot_be_sent_on_or_contains_another_task_is_a_bad_request(more: Json) -> None:
    body = task(1)
    body["task"]["task_input"] |= more
    text = json.dumps(body).encode()  # orjson writes no deep lists
    async with servers() as stack:
        [url] = (await stack.client.book.current()).servers["agent"]
        answer = await stack.transport.send("POST", f"{url}/run", text, {}, 5.0)
    problem = orjson.loads(answer.body)
    assert (answer.status, problem["type"]) == (400, "urn:rollyard:bad_request")
    assert "task_input" in problem["detail"]


@pytest.mark.parametrize(
    ("access", "text"),
    [
        ({"kind": "direct_http", "base_url": "http://elsewhere:1"}, "http://elsewhere:1"),
        ({"kind": "mcp", "required": True}, "mcp"),
    ],
)
async def test_an_agent_refuses_tools_that_it_does_not_reach(access: Json, text: str) -> None:
    async with servers() as stack:
        answer = await stack.post("agent", "/v1/agent_sessions", {"agent_session_id": "a", "tool_accesses": [access]})
    assert answer.status == 400 and text in orjson.loads(answer.body)["detail"]


async def test_an_environment_that_speaks_first_is_refused_because_its_message_would_be_lost() -> None:
    async with servers(hosted=Greeting) as stack:
        answer = await seeded(stack)
        assert answer.status == 422 and "/run" in orjson.loads(answer.body)["detail"]


async def test_a_session_id_that_belongs_to_another_task_is_refused() -> None:
    async with servers() as stack:
        await seeded(stack, 1)
        assert (await seeded(stack, 2)).status == 409


@pytest.mark.parametrize(
    "path", ["/ng-rollout/3-0/v1/responses", "/ng-rollout/3-0/training-token-capture/v1/responses"]
)
async def test_a_model_server_serves_the_path_that_names_a_rollout(path: str) -> None:
    async with servers() as stack:
        answer = await stack.post("model", path, {"model": "m", **PARAMS})
        assert answer.status == 200 and orjson.loads(answer.body)["output"]
        assert (await stack.post("model", "/ng-rollout/3-0/nothing", {})).status == 404
