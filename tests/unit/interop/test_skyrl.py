"""The generator for SkyRL returns what its trainer can train on, and nothing for what failed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from rollyard.interop.skyrl import StackGenerator
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json
from tests.unit.interop.scripted_session import answer, playing, task

SAMPLING = {"temperature": 0.5, "top_p": 1.0, "top_k": -1, "max_generate_length": 64, "logprobs": 1}


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


def batch(*kinds: str, sampling: Json = SAMPLING) -> Json:
    return {
        "prompts": [[{"role": "user", "content": "Solve it."}] for _ in kinds],
        "env_classes": ["rollyard"] * len(kinds),
        "env_extras": [{"row": json.dumps(task(kind))} for kind in kinds],
        "sampling_params": sampling,
        "trajectory_ids": [TrajectoryID("task", repeat) for repeat in range(len(kinds))],
    }


async def generated(*kinds: str, constrained: str = "refuse", **options: Any) -> Json:
    with playing(answer, constrained=constrained) as (player, _):
        return await StackGenerator(player, filler_id=7, **options).generate(batch(*kinds))


async def test_turns_are_one_response_with_a_mask_over_the_tokens_of_the_environment() -> None:
    output = await generated("won")
    assert output["prompt_token_ids"] == [[1, 2]] and output["response_ids"] == [[3, 4, 9, 5]]
    assert output["loss_masks"] == [[1, 1, 0, 1]] and output["rollout_logprobs"] == [[-0.3, -0.4, 0.0, -0.5]]
    assert output["rewards"] == [1.0] and output["stop_reasons"] == ["done"] and output["is_last_step"] is None


async def test_sampling_parameters_become_create_parameters() -> None:
    with playing(answer) as (player, agent):
        await StackGenerator(player, filler_id=7).generate(batch("won"))
    [request] = agent.requests
    given = {name: value for name, value in request["responses_create_params"].items() if name != "input"}
    assert given == {"temperature": 0.5, "top_p": 1.0, "max_output_tokens": 64}


async def test_a_failed_rollout_has_no_loss_and_leaves_the_mean_of_its_group_as_it_is() -> None:
    output = await generated("won", "lost", "broken")
    assert output["rewards"] == [1.0, 0.25, 0.625] and output["stop_reasons"][2] == "left_out"
    assert output["response_ids"][2] == [7] and output["loss_masks"][2] == [0]
    assert output["rollout_metrics"]["rollyard/left_out"] == pytest.approx(1 / 3)


async def test_a_changed_history_is_several_rows_of_one_trajectory_if_skyrl_trains_step_wise() -> None:
    output = await generated("changed", "won", step_wise=True)
    assert output["response_ids"] == [[3, 4], [6], [3, 4, 9, 5]]
    assert output["is_last_step"] == [False, True, True]
    assert [id_.repetition_id for id_ in output["trajectory_ids"]] == [0, 0, 1]


async def test_otherwise_a_changed_history_is_one_row_or_refused() -> None:
    for rule, mask in (("mask", [0]), ("last", [1])):
        output = await generated("changed", several_sequences=rule)
        assert output["response_ids"] == [[6]] and output["loss_masks"] == [mask] and output["rewards"] == [0.75]
    with pytest.raises(RunError, match="2 sequences"):
        await generated("changed", several_sequences="refuse")


async def test_importance_weights_are_needed_to_reweight_constrained_turns() -> None:
    with pytest.raises(OperatorError, match="tis_ratio_type"):
        await generated("constrained", constrained="reweight")


@pytest.mark.parametrize("more", [{"stop": ["</search>"]}, {"min_tokens": 3}, {"logit_bias": {"5": -100}}])
async def test_sampling_that_would_change_what_is_sampled_is_not_ignored(more: Json) -> None:
    with playing(answer) as (player, agent), pytest.raises(OperatorError, match=next(iter(more))):
        await StackGenerator(player, filler_id=7).generate(batch("won", sampling={**SAMPLING, **more}))
    assert agent.requests == []
