"""What makes two rows of data sets the same task."""

from __future__ import annotations

import pytest

from rollyard.services.rollouts.rollout_keys import prompt_key, task_key
from rollyard.services.types import Json

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
def test_who_plays_how_and_in_which_file_changes_no_key(same: Json) -> None:
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
def test_whatever_an_environment_or_a_model_reads_makes_another_key(other: Json) -> None:
    assert task_key({**ROW, **other}) != task_key(ROW)
    assert len(task_key({**ROW, **other})) == 16


def test_a_prompt_that_cannot_be_told_has_no_key() -> None:
    deep: Json = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert prompt_key({}) == prompt_key({"responses_create_params": []}) == 0
    assert prompt_key({"responses_create_params": {"input": deep}}) == 0
    prompts: list[object] = ["a", "b", "\ud800", 2**70, [[]]]
    told = [prompt_key({"responses_create_params": {"input": said}}) for said in prompts]
    assert len({0, *told}) == 6
