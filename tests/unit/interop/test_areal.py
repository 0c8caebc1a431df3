"""The agent for AReaL returns rewards that may be trained on, and raises for everything else."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rollyard.interop.areal import Rejected, StackAgent, play_online
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json
from tests.unit.interop.scripted_session import answer, playing, task
from tests.unit.training.recorded_turns import row

PROXY = {"base_url": "http://proxy:1", "api_key": "session-key", "http_client": None}


async def reward(kind: str) -> float:
    with playing(answer, max_attempts=1) as (player, _):
        return await StackAgent(player).run({"row": task(kind)}, **PROXY)


async def test_the_episode_goes_through_the_proxy_of_its_session() -> None:
    with playing(answer, max_attempts=1) as (player, agent):
        assert await StackAgent(player, model="qwen").run({"row": task("won")}, **PROXY) == 1.0
    [request] = agent.requests
    assert request["policy_base_url"] == "http://proxy:1" and request["policy_api_key"] == "session-key"
    assert request["policy_model_name"] == "qwen"


async def test_tokens_are_not_needed_because_the_proxy_records_them() -> None:
    async def plain(request: Json, attempt: int) -> Json:
        return {**row(reward=0.5), "response": {"output": []}}

    with playing(plain, max_attempts=1) as (player, _):
        assert await StackAgent(player).run({"messages": [{"role": "user", "content": "Solve it."}]}, **PROXY) == 0.5


@pytest.mark.parametrize(
    ("kind", "reason"), [("broken", "failed: server_error"), ("cut", "ended with length, whose treatment is masked")]
)
async def test_what_may_not_be_trained_on_is_rejected(kind: str, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        await reward(kind)


async def test_a_policy_that_is_too_slow_has_reward_0() -> None:
    assert await reward("slow") == 0.0


async def test_further_attempts_would_mix_two_episodes_in_one_trajectory() -> None:
    with playing(answer) as (player, _), pytest.raises(OperatorError, match="max_attempts=1"):
        StackAgent(player)


async def test_the_mode_subproc_is_refused() -> None:
    with playing(answer, max_attempts=1) as (player, _), pytest.raises(RunError, match="use mode inline"):
        await StackAgent(player).run({"row": task("won")})


class Gateway:
    """AReaL's gateway: the calls that it got, each with its key and body."""

    def __init__(self, status: int = 200) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self._status = status
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        key = request.headers["authorization"].removeprefix("Bearer ")
        self.calls.append((request.url.path, key, request.content))
        return httpx.Response(self._status, json={"session_id": "s", "api_key": "session-key"})


async def online(kind: str, gateway: Gateway) -> float:
    with playing(answer, max_attempts=1) as (player, _):
        async with gateway.client as client:
            return await play_online(StackAgent(player), client, "http://gateway", "admin", {"row": task(kind)})


async def test_an_online_session_is_started_rewarded_and_ended() -> None:
    gateway = Gateway()
    assert await online("won", gateway) == 1.0
    started, *others = [(path, key) for path, key, _ in gateway.calls]
    assert started == ("/rl/start_session", "admin")
    assert others == [(f"/rl/{name}", "session-key") for name in ("set_reward", "end_session")]
    assert gateway.calls[1][2] == b'{"reward":1.0}'


async def test_a_rejected_session_is_not_ended_because_that_would_be_reward_0() -> None:
    gateway = Gateway()
    with pytest.raises(Rejected):
        await online("broken", gateway)
    assert [path for path, _, _ in gateway.calls] == ["/rl/start_session"]
