"""The functions for slime and miles fill samples, and leave failed rollouts out of groups."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from rollyard.interop.slime import SlimeRollouts
from rollyard.records.errors import OperatorError
from tests.unit.interop.scripted_session import answer, playing, task

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 32}
ARGS = SimpleNamespace(custom_reward_post_process_path="my_rollouts.rewards", advantage_estimator="grpo")
ARGS.rewards_normalization = ARGS.grpo_std_normalization = True


@dataclass
class Sample:
    """The fields of slime's Sample that the adapter uses; tests/external/trainers tests miles' own."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        FAILED = "failed"

    index: int
    metadata: dict[str, Any]
    group_index: int = 0
    prompt: str = ""
    status: Status = Status.PENDING
    reward: float = 0.0
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    loss_mask: list[int] = field(default_factory=list)
    rollout_log_probs: list[float] = field(default_factory=list)
    weight_versions: list[str] = field(default_factory=list)
    remove_sample: bool = False

    def get_reward_value(self, args: Any) -> float:
        return self.reward


async def generated(*kinds: str, **options: Any) -> tuple[list[Sample], SlimeRollouts]:
    samples: list[Sample] = []
    with playing(answer) as (player, _):
        rollouts = SlimeRollouts(player, **options)
        for index, kind in enumerate(kinds):
            found = await rollouts.generate(ARGS, Sample(index, {"row": json.dumps(task(kind))}), SAMPLING)
            samples += found if isinstance(found, list) else [found]
    return samples, rollouts


async def test_a_sample_gets_tokens_masks_log_probabilities_and_versions() -> None:
    [sample], _ = await generated("won")
    assert sample.tokens == [1, 2, 3, 4, 9, 5] and sample.response_length == 4
    assert sample.loss_mask == [1, 1, 0, 1] and sample.rollout_log_probs == [-0.3, -0.4, 0.0, -0.5]
    assert sample.weight_versions == ["7", "8"] and sample.reward == 1.0
    assert sample.status is Sample.Status.COMPLETED and not sample.remove_sample


async def test_a_rollout_that_was_cut_off_is_truncated_and_has_no_loss() -> None:
    [sample], _ = await generated("cut")
    assert sample.status is Sample.Status.TRUNCATED and sample.remove_sample and sum(sample.loss_mask) == 0


async def test_a_failed_rollout_is_removed_and_does_not_move_the_others_advantages() -> None:
    samples, rollouts = await generated("won", "lost", "broken")
    assert samples[2].status is Sample.Status.FAILED and samples[2].remove_sample and math.isnan(samples[2].reward)
    raw, advantages = rollouts.rewards(ARGS, samples)
    assert raw == [1.0, 0.25, 0.625]
    assert advantages == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5), 0.0], abs=1e-5)


async def test_a_changed_history_is_several_samples_of_which_the_group_counts_one() -> None:
    samples, rollouts = await generated("changed", "won")
    assert [sample.tokens for sample in samples] == [[1, 2, 3, 4], [8, 9, 6], [1, 2, 3, 4, 9, 5]]
    _, advantages = rollouts.rewards(ARGS, samples)
    assert advantages[0] == advantages[1] == pytest.approx(-advantages[2])


async def test_without_the_reward_function_no_rollout_is_played() -> None:
    with playing(answer) as (player, agent), pytest.raises(OperatorError, match="--custom-reward-post-process-path"):
        await SlimeRollouts(player).generate(SimpleNamespace(), Sample(0, {"row": task("won")}), SAMPLING)
    assert agent.requests == []
