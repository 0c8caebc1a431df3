"""Names and trajectories of NeMo Gym 0.7. tests/external/nemo_gym reads them with the real package."""

from __future__ import annotations

import pytest

from rollyard.records.errors import FailureKind
from rollyard.records.nemo_gym import kind_of, name_of, trajectory_of
from rollyard.records.rewards import is_measured, mask_of, with_verdict
from rollyard.records.types import Json

PROMPT = [{"role": "user", "content": "Add."}]
CALL: Json = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
RESULT: Json = {"type": "function_call_output", "call_id": "c", "output": "2"}
DONE: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2"}]}


def row(*output: Json, calls: int) -> Json:
    known = {"_ng_task_index": 1, "_ng_rollout_index": 0, "responses_create_params": {"input": PROMPT}}
    usage = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
    return {**known, "response": {"output": [*output], "usage": usage}, "timings": {"model_calls": calls}}


@pytest.mark.parametrize("kind", FailureKind)
def test_every_kind_is_recognised_by_the_name_that_it_has_there(kind: FailureKind) -> None:
    assert kind_of(name_of(kind)) is kind


@pytest.mark.parametrize("name", [None, 7, "", "gdpval:eval_missing", "rollyard:nothing"])
def test_a_name_that_its_servers_do_not_share_has_no_kind(name: object) -> None:
    assert kind_of(name) is None


def test_a_kind_beside_an_explicit_mask_of_false_is_only_a_remark() -> None:
    verdict: Json = {"reward": 1.0, "failure_kind": "session_lost"}
    assert is_measured({**verdict, "mask_sample": False})
    assert mask_of(verdict) == mask_of({**verdict, "_ng_failure_class": "x", "mask_sample": None}) == "session_lost"
    assert not is_measured({**verdict, "mask_sample": False, "_ng_failure_class": "judge_failed"})


@pytest.mark.parametrize("echoed", [{}, {"mask_sample": False}])
@pytest.mark.parametrize("shared", [{}, {"level": 3}, {"reward": 0.5}])
def test_a_mask_of_false_in_the_task_does_not_make_a_failed_verdict_a_measurement(shared: Json, echoed: Json) -> None:
    task: Json = {"responses_create_params": {}, "mask_sample": False, "_ng_failure_class": None, **shared}
    verdict = {**echoed, "level": 3, "reward": 0.0, "failure_kind": "judge_failed"}
    found = with_verdict(task, {**task, "response": {}}, verdict)
    assert mask_of(found) == "judge_failed"


def test_a_turn_has_what_the_model_saw_and_what_it_answered() -> None:
    found = trajectory_of(row({"type": "reasoning", "summary": []}, CALL, RESULT, DONE, calls=2))
    first, second = found["turns"]
    assert [item["type"] for item in first["question"]] == ["message"]
    assert (first["answer"], first["step_count"], second["step_count"]) == ([CALL], 1, 1)
    assert [item["type"] for item in first["reasoning_content"]] == ["reasoning"]
    assert (second["answer"], len(second["question"])) == ([DONE], 4)
    assert [tool["tool_name"] for tool in found["tool_calls"]] == ["add"]
    assert found["gaps"] == []


def test_token_counts_are_those_of_the_only_call_or_of_recorded_token_ids() -> None:
    [only] = trajectory_of(row(DONE, calls=1))["model_calls"]
    assert only["token_stats"] == {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    tokens = {"prompt_token_ids": [1, 2, 3], "generation_token_ids": [4]}
    found = trajectory_of(row({**CALL, **tokens}, RESULT, DONE, calls=2))
    counts = [call["token_stats"] for call in found["model_calls"]]
    assert counts == [{"prompt_tokens": 3, "completion_tokens": 1}, {}]
    assert tokens.keys().isdisjoint(found["invocations"][0]["conversation"][1])


def test_turns_that_do_not_match_the_number_of_model_calls_are_a_gap() -> None:
    assert trajectory_of(row(DONE, CALL, RESULT, DONE, calls=2))["gaps"]
