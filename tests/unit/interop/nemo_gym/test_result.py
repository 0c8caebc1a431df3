"""Results for trainers: the mask, the rules for tokens, and the components of the reward."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rollyard.interop.nemo_gym.collection_helper import UNSUMMED, failed_result, to_result
from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.types import FinishReason, Json
from rollyard.training.groups import EndingRules, Treatment
from tests.support.nemo_rl_rules import loss_multiplier, message_log, verl_message_log

ROW: Json = {"responses_create_params": {"input": "go"}, "agent_ref": {"name": "player"}, "_rowidx": 0}


def turn(prompt: list[int], generated: list[int], log_probs: list[Any] | None = None) -> Json:
    values = [-0.5] * len(generated) if log_probs is None else log_probs
    tokens = {"prompt_token_ids": prompt, "generation_token_ids": generated, "generation_log_probs": values}
    return {"type": "message", "role": "assistant", "content": [], **tokens}


def answer(*output: Json, **more: Any) -> Json:
    return {**ROW, "response": {"output": list(output)}, "reward": 1.0, "finish_reason": "answered", **more}


def result(*output: Json, rules: EndingRules | None = None, **more: Any) -> Json:
    return to_result(ROW, answer(*output, **more), rules or EndingRules(), "player")


def test_a_finished_episode_is_not_masked() -> None:
    found = result(turn([1, 2], [3]), {"type": "function_call_output"}, turn([1, 2, 3, 4], [5, 6]))
    assert loss_multiplier(found) == 1.0
    assert [message.token_ids for message in message_log(ROW, found)] == [[1, 2], [3], [4], [5, 6]]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTEXT_OVERFLOW, FinishReason.CONTENT_FILTER])
def test_an_episode_that_was_cut_off_is_masked_and_keeps_its_tokens(reason: FinishReason) -> None:
    found = result(turn([1], [2]), finish_reason=reason.value)
    assert loss_multiplier(found) == 0.0
    assert found["instance_config"]["mask_reason"].endswith(f" {reason}")
    assert len(message_log(ROW, found)) == 2


def test_the_settings_decide_which_endings_are_masked() -> None:
    rules = EndingRules(finish_reasons={"length": Treatment.PLAYED, "max_steps": Treatment.MASKED})
    played, masked = (result(turn([1], [2]), rules=rules, finish_reason=name) for name in ("length", "max_steps"))
    assert (loss_multiplier(played), loss_multiplier(masked)) == (1.0, 0.0)


@pytest.mark.parametrize("flag", [{"mask_sample": True}, {"instance_config": {"mask_sample": True, "image": "x"}}])
def test_the_mask_of_the_environment_is_kept(flag: Json) -> None:
    found = result(turn([1], [2]), **flag)
    assert loss_multiplier(found) == 0.0
    assert found["mask_sample"] is True
    assert found["instance_config"].get("image") == flag.get("instance_config", {}).get("image")


@pytest.mark.parametrize(
    ("second", "violation"),
    [
        (turn([1, 9, 3, 4], [5]), "the 3 tokens"),
        (turn([1, 2, 3, 4], [5], [math.nan]), "finite"),
        (turn([1, 2, 3, 4], [5], [None]), "finite"),
        (turn([1, 2, 3, 4], [5, 6], [-0.1]), "2 token ids but 1"),
        ({**turn([1, 2, 3, 4], [5]), "prompt_token_ids": None}, "prompt_token_ids"),
    ],
)
def test_tokens_that_a_trainer_would_reject_are_removed_and_the_rest_is_masked(second: Json, violation: str) -> None:
    found = result(turn([1, 2], [3]), second, turn([1, 2, 3, 4, 5], [6]))
    assert violation in found["instance_config"]["mask_reason"]
    assert [message.token_ids for message in message_log(ROW, found)] == [[1, 2], [3]]
    assert len(verl_message_log(found)) == 2
    assert found["reward"] == 1.0


def test_a_result_whose_first_turn_breaks_a_rule_gets_a_masked_placeholder() -> None:
    found = result(turn([1, 2], [3], [math.inf]))
    assert loss_multiplier(found) == 0.0
    assert len(message_log(ROW, found)) == 2


def test_a_model_server_that_records_no_tokens_is_an_error_and_not_a_batch_of_masked_results() -> None:
    with pytest.raises(RunError, match="return_token_id_information: true"):
        result({"type": "message", "role": "assistant", "content": []})


def test_components_that_sum_to_the_reward_are_kept() -> None:
    found = result(turn([1], [2]), reward=0.3, reward_components={"a": 0.1, "b": 0.2})
    message_log(ROW, found)
    assert found["reward_components"] == {"a": 0.1, "b": 0.2}


@pytest.mark.parametrize("components", [{"a": 0.5}, {"a": "1"}, [1.0]])
def test_components_with_another_sum_are_renamed_because_they_would_end_the_step(components: Any) -> None:
    found = result(turn([1], [2]), reward_components=components)
    message_log(ROW, found)
    assert found[UNSUMMED] == components


@pytest.mark.parametrize("response", [None, {}, {"output": None}, {"output": ["text"]}])
def test_an_answer_without_output_items_is_a_failure(response: Any) -> None:
    with pytest.raises(Failure) as raised:
        to_result(ROW, {"reward": 1.0, "response": response}, EndingRules(), "player")
    assert raised.value.kind is FailureKind.MALFORMED_ANSWER


def test_the_result_of_a_failed_rollout_is_masked_and_bearable() -> None:
    found = failed_result(ROW, Failure(FailureKind.SESSION_LOST, "it died", server="sokoban"))
    assert loss_multiplier(found) == 0.0
    assert len(message_log(ROW, found)) == 2
    assert found["failure_kind"] == "session_lost"
    assert found["instance_config"]["mask_reason"] == "session_lost at sokoban: it died"
