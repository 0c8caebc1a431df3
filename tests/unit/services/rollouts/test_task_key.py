"""Which dataset rows are the same task."""

from __future__ import annotations

import pytest

from rollyard.records.rollout_keys import prompt_key, task_key
from rollyard.records.types import Json

ROW: Json = {
    "responses_create_params": {"input": [{"role": "user", "content": "Solve it."}], "temperature": 1.0},
    "level_id": 7,
    "seed": 84810,
}


@pytest.mark.parametrize(
    "same",
    [
        {"agent_ref": {"name": "another"}, "dataset_name": "rooms", "prompt_id": "row_1", "uuid": "u"},
        {"_ng_task_index": 3, "_ng_task_key": "0" * 16, "reward": 1.0, "response": {"output": []}},
        {"responses_create_params": {**ROW["responses_create_params"], "temperature": 0.2, "model": "other"}},
    ],
)
def test_the_key_ignores_agent_dataset_results_and_sampling_parameters(same: Json) -> None:
    assert task_key({**ROW, **same}) == task_key(dict(reversed(ROW.items())))


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 84811},
        {"level_id": 8},
        {"seed": 2**70},
        {"responses_create_params": {"input": [{"role": "user", "content": "Solve it!"}]}},
        {
            "responses_create_params": {
                **ROW["responses_create_params"],
                "tools": [{"type": "function", "name": "step"}],
            }
        },
    ],
)
def test_the_key_changes_with_what_the_environment_or_the_model_reads(other: Json) -> None:
    assert task_key({**ROW, **other}) != task_key(ROW)
    assert len(task_key({**ROW, **other})) == 16


def test_a_missing_or_too_deep_prompt_has_no_key() -> None:
    deep: Json = {}
    for _ in range(10_000):
        deep = {"a": deep}
    assert prompt_key({}) == prompt_key({"responses_create_params": []}) == 0
    assert prompt_key({"responses_create_params": {"input": deep}}) == 0
    prompts: list[object] = ["a", "b", "\ud800", 2**70, [[]]]
    keys = [prompt_key({"responses_create_params": {"input": prompt}}) for prompt in prompts]
    assert len({0, *keys}) == 6
