"""An episode whose model calls go to the caller's own endpoint: `policy_base_url` in the body of /run."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response

from rollyard.agents.game_agent.app import GameAgent
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from tests.support.fixtures import failure_of
from tests.support.foreign_servers import TOKEN_KEYS, foreign_environment
from tests.support.in_process import KEYS, Script, says
from tests.support.scripted_engine import completion

PROXY = "http://trainer:30000"
BASE = f"{PROXY}/sessions/7/v1"
KEY = "sk-secret-of-the-trainer"
ROW: Json = {"responses_create_params": {"input": "Go."}, "gold": 4}
POLICY: Json = {"policy_base_url": BASE, "policy_api_key": KEY, "policy_model_name": "student"}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "roll", "arguments": "{}"}}
RESPONSE: Json = Script([[says("from responses")]]).response({})


class Proxy:
    """A trainer's proxy: it records the requests, and answers them with the given answers in order."""

    def __init__(self, answers: list[Any], paths: tuple[str, ...] = ("/chat/completions",)) -> None:
        self.requests: list[tuple[str, dict[str, str], Json]] = []
        self.app = FastAPI()

        @self.app.post("/{path:path}")
        async def answer(path: str, request: Request) -> Any:
            body = await request.json()
            self.requests.append((f"/{path}", dict(request.headers), body))
            if not path.endswith(paths):
                return Response(b'{"detail":"Not Found"}', 404, media_type="application/json")
            found = answers.pop(0) if len(answers) > 1 else answers[0]
            is_raw = isinstance(found, Response)
            return found if is_raw else Response(orjson.dumps(found), media_type="application/json")


class Environment:
    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.app = app = FastAPI()

        @app.middleware("http")
        async def record(request: Request, call_next: Any) -> Any:
            body = await request.body()
            self.received.append(body + repr(dict(request.headers)).encode())
            return await call_next(request)

        @app.post("/seed_session")
        async def seed_session() -> Json:
            return {}

        @app.post("/reset")
        async def reset() -> Json:
            return {"observation": None, "info": {}}

        @app.post("/step")
        async def step() -> Json:
            return {"observation": None, "reward": 1.0, "terminated": True, "truncated": False, "info": {}}

        @app.post("/roll")
        async def roll() -> Json:
            return {"value": 4}

        @app.post("/verify")
        async def verify(request: Request) -> Json:
            return {**await request.json(), "reward": 1.0}


def stack(proxy: Proxy, environment: Environment, kind: Any = SimpleAgent, **options: Any) -> Any:
    settings = {"keys": TOKEN_KEYS, "policy_base_url_allowlist": [f"{PROXY}/sessions"], **options}
    script = Script([[says("from the server")]])
    return foreign_environment(environment.app, script, kind, others={PROXY: proxy.app}, **settings)


async def refused(policy: Json, **options: Any) -> Failure:
    """The failure of a row with this policy, whose endpoint and environment must not be called."""
    proxy, environment = Proxy([completion({"content": "hi"})]), Environment()
    async with stack(proxy, environment, **options) as servers:
        failure = await failure_of(servers.run({**ROW, **policy}))
    assert (proxy.requests, environment.received) == ([], [])
    return failure


@pytest.mark.parametrize("kind", [SimpleAgent, GameAgent, TurnAgent])
async def test_every_agent_calls_the_episodes_own_endpoint_with_its_key_and_model(kind: Any) -> None:
    proxy, environment = Proxy([completion({"content": "hi"})]), Environment()
    async with stack(proxy, environment, kind) as servers:
        rollout = await servers.run({**ROW, **POLICY})
    path, headers, body = proxy.requests[0]
    assert (path, headers["authorization"]) == ("/sessions/7/v1/chat/completions", f"Bearer {KEY}")
    assert (body["model"], body["messages"]) == ("student", [{"role": "user", "content": "Go."}])
    assert rollout["response"]["output"][0]["content"][0]["text"] == "hi"
    assert rollout["reward"] == 1.0
    assert not any(name.startswith("x-rollyard") for name in headers)


async def test_a_call_of_the_agents_responses_may_name_its_endpoint_too() -> None:
    proxy, environment = Proxy([completion({"content": "hi"})]), Environment()
    async with stack(proxy, environment) as servers:
        body = {"input": "Go.", **POLICY}
        answered = await servers.post("agent", "/v1/responses", body, {"authorization": f"Bearer {TOKEN_KEYS.token}"})
    path, headers, sent = proxy.requests[0]
    assert (path, headers["authorization"]) == ("/sessions/7/v1/chat/completions", f"Bearer {KEY}")
    assert not POLICY.keys() & sent.keys() and KEY.encode() not in answered.body
    assert orjson.loads(answered.body)["output"][0]["content"][0]["text"] == "hi"


async def test_without_the_fields_the_episode_uses_the_agents_model_server() -> None:
    proxy = Proxy([completion({"content": "hi"})])
    async with stack(proxy, Environment()) as servers:
        plain = await servers.run(ROW)
        empty = await servers.run({**ROW, "policy_base_url": None, "policy_api_key": None})
    for rollout in (plain, empty):
        assert rollout["response"]["output"][0]["content"][0]["text"] == "from the server"
    assert not proxy.requests


async def test_the_key_reaches_neither_the_environment_nor_the_rollout_nor_a_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    proxy, environment = Proxy([completion({"content": f"my key is {KEY}"})]), Environment()
    async with stack(proxy, environment) as servers:
        rollout = await servers.run({**ROW, **POLICY})
    assert KEY not in orjson.dumps(rollout).decode()
    assert not any(KEY.encode() in body or b"policy_" in body for body in environment.received)
    assert KEY not in caplog.text
    assert (rollout["policy_base_url"], rollout["policy_model_name"]) == (BASE, "student")


@pytest.mark.parametrize("status", [400, 401, 404, 500])
async def test_the_key_is_not_in_an_error_that_the_endpoint_echoes(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    proxy = Proxy([Response(f'{{"error": "bad key {KEY}"}}', status)])
    async with stack(proxy, Environment()) as servers:
        answer = await servers.post("agent", "/run", {**ROW, **POLICY}, {"authorization": "Bearer run-token"})
    assert answer.status >= 400
    assert KEY not in answer.body.decode() + caplog.text


async def test_an_endpoint_without_chat_completions_is_called_at_responses() -> None:
    proxy = Proxy([RESPONSE], paths=("/responses",))
    async with stack(proxy, Environment()) as servers:
        first, second = [await servers.run({**ROW, **POLICY}) for _ in range(2)]
    assert first["response"]["output"] == second["response"]["output"] == RESPONSE["output"]
    assert [path for path, _, _ in proxy.requests] == [
        f"/sessions/7/v1/{end}" for end in ("chat/completions", "responses", "responses")
    ]


async def test_failures_of_the_endpoint_are_retried_as_those_of_a_model_server() -> None:
    proxy = Proxy([Response(b"busy", 503), Response(b"[]", 200), completion({"content": "hi"})])
    async with stack(proxy, Environment()) as servers:
        rollout = await servers.run({**ROW, **POLICY})
    assert (rollout["reward"], len(proxy.requests)) == (1.0, 3)


async def test_an_endpoint_that_stays_down_is_a_failure_and_not_a_reward() -> None:
    proxy, environment = Proxy([Response(b"down", 500)]), Environment()
    async with stack(proxy, environment) as servers:
        failure = await failure_of(servers.run({**ROW, **POLICY}))
    assert (failure.kind, failure.problem.upstream_status) == (FailureKind.UPSTREAM_ERROR, 500)
    assert len(proxy.requests) == 3


async def test_an_episode_with_several_endpoints_stays_on_one() -> None:
    proxy = Proxy([completion({"content": None, "tool_calls": [TOOL_CALL]}), completion({"content": "4"})])
    async with stack(proxy, Environment()) as servers:
        urls = [f"{PROXY}/sessions/a", f"{PROXY}/sessions/b"]
        await servers.run({**ROW, "policy_base_url": urls, "policy_model_name": "engine-model"})
    assert len({path for path, _, _ in proxy.requests}) == 1
    assert "authorization" not in proxy.requests[0][1]


async def test_tokens_and_log_probabilities_of_the_endpoint_stay_on_the_row() -> None:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    calls = completion({"content": None, "tool_calls": [TOOL_CALL], **tokens})
    proxy = Proxy([calls, completion({"content": "4", **tokens})])
    async with stack(proxy, Environment()) as servers:
        rollout = await servers.run({**ROW, **POLICY})
    items = rollout["response"]["output"]
    assert [items[0][name] for name in tokens] == [items[2][name] for name in tokens] == list(tokens.values())
    assert "token_ids" not in orjson.dumps(proxy.requests[1][2]).decode()


async def test_an_endpoint_that_is_not_allowed_or_not_readable_is_refused() -> None:
    policies: list[tuple[Json, FailureKind, str]] = [
        ({"policy_base_url": "http://elsewhere:30000/sessions"}, FailureKind.FORBIDDEN, "allowlist"),
        ({"policy_base_url": f"{PROXY}/admin"}, FailureKind.FORBIDDEN, "allowlist"),
        ({"policy_base_url": f"{PROXY}/sessions/../admin"}, FailureKind.BAD_REQUEST, "`..`"),
        ({"policy_base_url": [BASE, "http://elsewhere/v1"]}, FailureKind.FORBIDDEN, "elsewhere"),
        ({"policy_base_url": 7}, FailureKind.BAD_REQUEST, "expected a URL"),
        ({"policy_base_url": []}, FailureKind.BAD_REQUEST, "expected a URL"),
        ({"policy_base_url": ""}, FailureKind.BAD_REQUEST, "expected a URL"),
        ({"policy_base_url": [BASE, None]}, FailureKind.BAD_REQUEST, "expected a URL"),
        ({"policy_base_url": BASE, "policy_api_key": 7}, FailureKind.BAD_REQUEST, "policy_api_key"),
        ({"policy_base_url": BASE, "policy_api_key": "a\nb"}, FailureKind.BAD_REQUEST, "policy_api_key"),
        ({"policy_base_url": BASE, "policy_model_name": ["a"]}, FailureKind.BAD_REQUEST, "policy_model_name"),
        ({"policy_api_key": KEY}, FailureKind.BAD_REQUEST, "without policy_base_url"),
    ]
    proxy, environment = Proxy([completion({"content": "hi"})]), Environment()
    async with stack(proxy, environment) as servers:
        for policy, kind, words in policies:
            failure = await failure_of(servers.run({**ROW, **policy}))
            failure = failure
            assert (failure.kind, failure.problem.server) == (kind, "agent")
            assert words in failure.problem.detail
            assert 400 <= failure.problem.status < 500
            assert KEY not in failure.problem.detail
    assert (proxy.requests, environment.received) == ([], [])


@pytest.mark.parametrize(
    ("options", "named"),
    [({"policy_base_url_allowlist": []}, "policy_base_url_allowlist"), ({"keys": KEYS}, "run token")],
)
async def test_without_an_allowlist_or_a_token_of_the_run_the_field_is_refused(options: Json, named: str) -> None:
    failure = await refused(POLICY, **options)
    assert failure.kind is FailureKind.FORBIDDEN and named in failure.problem.detail


async def test_a_model_server_calls_only_endpoints_that_an_agent_of_its_run_has_signed() -> None:
    proxy = Proxy([completion({"content": "hi"})])
    async with stack(proxy, Environment()) as servers:
        headers = {"authorization": "Bearer run-token"}
        for forged in ({}, {"x-rollyard-policy": "e30=.00"}, {"x-rollyard-policy": "?"}):
            answer = await servers.post("model", "/policy/responses", {"input": "Go."}, {**headers, **forged})
            assert answer.status == 403
    assert not proxy.requests
