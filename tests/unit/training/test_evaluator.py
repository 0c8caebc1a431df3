"""Evaluation during training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import RunError
from rollyard.services.datasets.mixture import TaskFile
from rollyard.training.train import evaluate, evaluation_metrics
from rollyard.training.train_config import TrainConfig
from tests.unit.training.recorded_turns import row, turn
from tests.unit.training.scripted_training import ScriptedPolicy, Training, training


async def evaluated(run: Training, step: int, **settings: Any) -> dict[str, float]:
    config = TrainConfig(model="m", output_dir=run.paths.root, agent_name="solver", evaluation=settings)
    tasks = TaskFile(run.data, agent="solver", limit=config.evaluation.limit)
    return await evaluate(
        step, stack=run.stack.clients, tasks=tasks, config=config, paths=run.paths, print_line=run.lines.append
    )


def by_question(answer: Callable[[int], str]) -> ScriptedPolicy:
    return ScriptedPolicy(lambda question, count: answer(question))


async def test_every_row_is_played_as_often_as_set_and_after_an_interruption_only_what_is_missing(
    tmp_path: Path,
) -> None:
    async with training(tmp_path, by_question(lambda question: str(question % 2)), questions=4) as run:
        found = await evaluated(run, 3, num_repeats=2)
        assert run.policy.asked == {0: 2, 1: 2, 2: 2, 3: 2}
        output = run.paths.evaluation(3)
        assert output.name == "step_000003.jsonl"
        output.write_bytes(b"".join(output.read_bytes().splitlines(keepends=True)[:2]))
        assert await evaluated(run, 3, num_repeats=2) == found and run.policy.asked.total() == 14
    assert (found["reward"], found["failed_rollouts"]) == (0.5, 0)


async def test_rollouts_of_other_sampling_parameters_are_not_mixed(tmp_path: Path) -> None:
    async with training(tmp_path, by_question(lambda question: "1"), questions=4) as run:
        await evaluated(run, 3)
        await evaluated(run, 3, responses_create_params={"temperature": 0.5})
        assert run.policy.asked.total() == 8 and any("step_000003.jsonl" in line for line in run.lines)


async def test_a_failed_rollout_is_counted_without_a_reward_and_an_evaluation_of_failures_is_an_error(
    tmp_path: Path,
) -> None:
    policy = by_question(lambda question: "crash" if question == 0 else "1")
    async with training(tmp_path, policy, questions=30) as run:
        found = await evaluated(run, 0, limit=4)
        assert (found["reward"], found["failed_rollouts"]) == (1.0, 1)
        policy.answer = lambda question, count: "crash"
        with pytest.raises(RunError, match="evaluation after 1 updates"):
            await evaluated(run, 1)


def test_the_metrics_are_shares_and_means_of_the_measured_rollouts() -> None:
    rows = [
        row(turn([1], [2, 3]), turn([1, 2, 3, 4], [5]), reward=1.0, success=True, extracted_answer="18"),
        row(turn([1], [2]), reward=-1.0, success=False, extracted_answer=None),
        row(turn([1], [2, 3]), reward=0.0, success=False, finish_reason="unreadable_call"),
        row(turn([1], [9]), reward=100.0, mask_sample=True),
    ]
    assert evaluation_metrics(iter(rows), 5) == pytest.approx(
        {
            "failed_rollouts": 2,
            "reward": 0.0,
            "accuracy": 1 / 3,
            "correct_rate": 1 / 3,
            "parse_err_rate": 2 / 3,
            "avg_completion_length": 2.0,
            "total_completion_tokens": 6,
        }
    )


def test_endpoints_without_token_ids_count_the_tokens_that_they_report() -> None:
    rollout = {"reward": 1.0, "response": {"output": [], "usage": {"output_tokens": 7}}}
    assert evaluation_metrics(iter([rollout]), 1)["total_completion_tokens"] == 7
