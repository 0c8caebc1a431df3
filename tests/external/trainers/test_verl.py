"""The agent loop returns verl's own AgentLoopOutput; failed rollouts need the estimator that leaves them out."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from pydantic import BaseModel

from rollyard.interop import verl
from rollyard.records.errors import RunError
from tests.external.trainers.wheel_sources import module_of
from tests.unit.interop.scripted_session import answer, playing, task

LOOP = module_of(
    "verl.experimental.agent_loop.agent_loop",
    *("AgentLoopMetrics", "AgentLoopOutput"),
    BaseModel=BaseModel,
    Any=Any,
    Optional=Optional,
)
LOOP.AgentLoopOutput.model_rebuild(_types_namespace=vars(LOOP))
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


async def output(kind: str, monkeypatch: pytest.MonkeyPatch, *, estimator: str = "grpo", **options: Any) -> Any:
    rollout = SimpleNamespace(prompt_length=options.pop("prompt_length", 8), response_length=3)
    algorithm: Any = type("Algorithm", (), {"adv_estimator": estimator, "get": lambda self, name: None})()
    config = SimpleNamespace(
        config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout), algorithm=algorithm)
    )
    with playing(answer) as (player, _):
        monkeypatch.setattr(verl, "player", lambda **stack: player)
        loop = verl.StackAgentLoop(
            trainer_config=config, tokenizer=SimpleNamespace(eos_token_id=7), server_manager=None, head="h:1", **options
        )
        return await loop.run(SAMPLING, row=json.dumps(task(kind)), raw_prompt=[], index=0)


@pytest.mark.smoke
async def test_the_output_is_verls(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await output("won", monkeypatch)
    assert isinstance(found, LOOP.AgentLoopOutput) and found.reward_score == 1.0 and found.num_turns == 4
    assert found.extra_fields["min_global_steps"] == 7 and found.extra_fields["max_global_steps"] == 8


async def test_responses_are_cut_at_the_length_that_verl_pads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await output("won", monkeypatch)
    assert found.prompt_ids == [1, 2] and found.response_ids == [3, 4, 9] and found.response_mask == [1, 1, 0]
    assert found.response_logprobs == [-0.3, -0.4, 0.0]


async def test_a_prompt_that_is_too_long_has_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await output("won", monkeypatch, prompt_length=1)
    assert found.prompt_ids == [2] and found.response_mask == [0, 0, 0]


async def test_a_failed_rollout_stops_a_training_that_would_use_its_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"set algorithm\.adv_estimator=rollyard_grpo"):
        await output("broken", monkeypatch)


async def test_with_the_estimator_a_failed_rollout_has_no_reward_and_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await output("broken", monkeypatch, estimator="rollyard_grpo")
    assert math.isnan(found.reward_score) and found.response_mask == [0]
    assert found.extra_fields["reward_extra_info"] == {"counts": 0.0}


async def test_a_changed_history_is_several_outputs_if_the_trainer_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await output("changed", monkeypatch, several_sequences="all")
    assert [each.response_ids for each in found] == [[3, 4], [6]]
