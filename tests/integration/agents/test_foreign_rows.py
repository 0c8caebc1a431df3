"""Rows of other projects: fields of `responses_create_params` that this project does not know."""

from __future__ import annotations

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.types import Json
from tests.integration.agents.test_agents import ROW, counting
from tests.support.in_process import Script, says


async def test_an_unknown_create_parameter_reaches_the_model_and_the_rollout() -> None:
    later: Json = {"field_of_a_later_api": {"x": [1, None]}, "safety_identifier": "s"}
    row = {**ROW, "responses_create_params": {**ROW["responses_create_params"], **later}}
    script = Script([[says("done")]])
    async with counting(script, SimpleAgent) as stack:
        rollout = await stack.run(row)
    assert {key: script.requests[0].get(key) for key in later} == later
    assert {key: rollout["responses_create_params"].get(key) for key in later} == later
