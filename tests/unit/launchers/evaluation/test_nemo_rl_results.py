"""Results of an evaluation in NeMo-RL's formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.launchers.evaluation.nemo_rl import NemoRlConfig, parse, save, summary
from rollyard.records.errors import RunError


def config(tmp_path: Path, **evaluation: Any) -> NemoRlConfig:
    return parse(
        {
            "generation": {"model_name": "a/b", "temperature": 1.0},
            "data": {"dataset_name": "openai/gsm8k"},
            "eval": {"num_tests_per_prompt": 4, "save_path": str(tmp_path / "saved"), **evaluation},
        },
        "eval.yaml",
    )


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    """Two tasks with four repeats: one and two of them solved."""
    path = tmp_path / "rollouts.jsonl"
    rewards = {0: [1, 0, 0, 0], 1: [1, 1, 0, 0]}
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"question {task}"}]},
            "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "an answer"}]}]},
            "reward": float(reward),
            "success": bool(reward),
            "_ng_task_index": task,
            "_ng_rollout_index": repeat,
            "agent_ref": {"name": "gsm8k_agent"},
        }
        for task, values in rewards.items()
        for repeat, reward in enumerate(values)
    ]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def test_the_block_ends_with_pass_at_k(tmp_path: Path, rollouts: Path) -> None:
    # 1 - C(3,2)/C(4,2) = 1/2 and 1 - C(2,2)/C(4,2) = 5/6
    text = summary(config(tmp_path, k_value=2), rollouts)
    assert "metric=pass@2 num_tests_per_prompt=4" in text
    assert "score=0.6667 (1.333333333/2)" in text
    assert text.count("=" * 60) == 2


def test_cons_at_k_is_the_share_of_subsets_whose_most_common_answer_is_right(tmp_path: Path, rollouts: Path) -> None:
    rows = [orjson.loads(line) for line in rollouts.read_bytes().splitlines()]
    with_answers = [{**row, "extracted_answer": "18" if row["success"] else "17"} for row in rows]
    answered = tmp_path / "answered.jsonl"
    answered.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in with_answers))
    # Of three rollouts, two or more of the first task are always wrong; the second has two right ones in half of them.
    text = summary(config(tmp_path, metric="cons@k", k_value=3), answered)
    assert "metric=cons@3" in text and "score=0.2500 (0.5/2)" in text
    with pytest.raises(RunError, match="extracted_answer"):
        summary(config(tmp_path, metric="cons@k", k_value=3), rollouts)


def test_a_k_that_no_task_reaches_is_an_error(tmp_path: Path, rollouts: Path) -> None:
    with pytest.raises(RunError, match=r"pass@8"):
        summary(config(tmp_path, num_tests_per_prompt=8, k_value=8), rollouts)


def test_the_saved_files_have_the_keys_of_nemo_rl(tmp_path: Path, rollouts: Path) -> None:
    settings, data = save(config(tmp_path), rollouts)
    assert orjson.loads(settings.read_bytes())["num_tests_per_prompt"] == 4
    samples = orjson.loads(data.read_bytes())["evaluation_data"]
    assert len(samples) == 8
    assert set(samples[0]) == {"prompt", "response", "reward", "message_log", "extra_env_info", "sample_index"}
    assert (samples[0]["prompt"], samples[0]["response"], samples[5]["sample_index"]) == ("question 0", "an answer", 1)
