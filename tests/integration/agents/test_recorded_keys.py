"""What an agent records about an episode is not replaced by the verdict of another framework's environment."""

from __future__ import annotations

from typing import Any

import orjson

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.support.in_process import Script, agent, in_process_servers, says

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
    make = {"environment": Echoing, "model": Script([[says("Hello.")]]).model, "agent": agent(SimpleAgent)}
    async with in_process_servers(make) as stack:
        rollout = await stack.run(row)
    assert (rollout["finish_reason"], rollout["truncated"]) == ("answered", False)
    assert rollout["timings"]["total_s"] > 0
    assert (rollout["_ng_task_index"], rollout["agent_ref"]) == (3, {"name": "agent"})
    assert (rollout["reward"], rollout["library_reward"]) == (1.0, 0.5)
