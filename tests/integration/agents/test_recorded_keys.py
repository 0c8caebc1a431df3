"""What an agent records about an episode is not replaced by the verdict of another framework's environment."""

from __future__ import annotations

from typing import Any

import orjson

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.rewards import is_measured, with_verdict
from rollyard.records.types import Json, Verdict
from rollyard.resources_servers.environment import Environment, EnvironmentSettings, Verification
from rollyard.services.http.request import RawRequest
from rollyard.services.rollouts.run_answer import RESPONSE_BYTES_HEADER
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.support.in_process import Script, episode_servers, says

HELLO = Script([[says("Hello.")]])
STALE: dict[str, Any] = {"finish_reason": "max_steps", "truncated": True, "timings": {"total_s": -1}}


class Echoing(Server):
    """Returns the whole request with its verdict, as NeMo Gym's environments do, and keys of its own."""

    def __init__(self, context: Context) -> None:
        super().__init__(ServerSettings(), context)
        self.route("/seed_session", self._seed)
        self.route("/verify", self._verify)

    async def _seed(self, call: RawRequest) -> bytes:
        return b"{}"

    async def _verify(self, call: RawRequest) -> bytes:
        return orjson.dumps({**call.json(), "reward": 1.0, "library_reward": 0.5, "_ng_task_index": 9, "agent_ref": 1})


async def test_a_row_that_is_a_finished_rollout_is_recorded_as_what_happened_now() -> None:
    row = {"responses_create_params": {"input": "Hi"}, "_ng_task_index": 3, "agent_ref": {"name": "agent"}, **STALE}
    async with episode_servers(Echoing, HELLO, SimpleAgent) as stack:
        answer = await stack.post("agent", "/run", row)
    rollout = orjson.loads(answer.body)
    assert RESPONSE_BYTES_HEADER not in answer.headers  # an echoed response is anywhere in the body
    assert (rollout["finish_reason"], rollout["truncated"]) == ("answered", False)
    assert rollout["timings"]["total_s"] > 0
    assert (rollout["_ng_task_index"], rollout["agent_ref"]) == (3, {"name": "agent"})
    assert (rollout["reward"], rollout["library_reward"]) == (1.0, 0.5)


class Own(Environment[EnvironmentSettings]):
    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0, reason="right", level="hard")


ROW: Json = {"responses_create_params": {"input": "Hi"}, "reason": "too easy", "level": "hard", "success": True}


async def test_a_value_of_the_row_stays_and_the_verdicts_is_stored_under_a_name_that_the_row_tells() -> None:
    async with episode_servers(Own, HELLO, SimpleAgent) as stack:
        rollout = await stack.run(ROW)
        body = {**ROW, "response": {"output": [says("Hello.")]}}
        foreign = await stack.transport.send("POST", "http://environment:1/verify", orjson.dumps(body), {}, 5.0)
    for found in (rollout, orjson.loads(foreign.body)):
        assert (found["reason"], found["verdict_reason"], found["level"]) == ("too easy", "right", "hard")
        assert found["_ng_renamed"] == {"reason": "verdict_reason", "success": "row_success"}
        assert "verdict_level" not in found


async def test_success_in_the_row_is_no_success_of_an_environment_that_reports_none() -> None:
    kinds: list[Any] = [Own, Echoing]
    for kind in kinds:
        async with episode_servers(kind, HELLO, SimpleAgent) as stack:
            rollout = await stack.run(ROW)
        assert (rollout["reward"], rollout["row_success"]) == (1.0, True)
        assert "success" not in rollout


def test_a_verdict_on_a_finished_rollout_replaces_its_old_verdict() -> None:
    finished = {"response": {"output": []}, "reward": 0.0, "success": False, "reason": "wrong", "expected_answer": "4"}
    found = with_verdict(finished, finished, {"reward": 1.0, "reason": "right"})
    assert found == {"response": {"output": []}, "reward": 1.0, "reason": "right", "expected_answer": "4"}


def test_a_verdict_on_a_rollout_that_was_masked_is_no_longer_masked() -> None:
    masked = {"mask_sample": True, "failure_kind": "timeout", "instance_config": {"mask_sample": True, "kept": 1}}
    finished = {"response": {"output": []}, "reward": 0.0, **masked}
    assert not is_measured(finished)
    found = with_verdict(finished, finished, {"reward": 1.0})
    assert is_measured(found) and found["instance_config"] == {"kept": 1}
    assert not is_measured(with_verdict(finished, finished, {"reward": 1.0, "mask_sample": True}))
