"""What the metrics of a step are computed from."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.records.errors import RunError
from rollyard.training.groups import GroupMember, Treatment
from rollyard.training.step_runner import step_metrics
from rollyard.training.update import update_of
from tests.unit.training.batches import TIMES, batch, failed, played
from tests.unit.training.recorded_turns import turn


def metrics(*members: GroupMember, step: int = 1, **failures: int) -> dict[str, float]:
    return step_metrics(batch(*members, step=step, **failures), {}, TIMES)


def test_rewards_are_means_over_measured_rollouts() -> None:
    found = metrics(
        played(1.0, success=True),
        played(0.0, success=False),
        played(0.5, finish_reason="length"),
        failed(),
        failed(Treatment.ZERO),
    )
    assert "train/correct_rate" not in metrics(played(1.0)), "the environment does not report success"
    assert found["train/reward"] == pytest.approx(0.5) and found["train/reward_std"] == pytest.approx(0.5)
    assert found["train/correct_rate"] == pytest.approx(1 / 3)
    assert found["train/ending/length"] == pytest.approx(1 / 3)


def test_the_parts_of_the_reward_add_up_to_it_although_a_rollout_lacks_one() -> None:
    found = metrics(
        played(1.1, reward_components={"format": 0.1, "correct": 1.0}),
        played(-1.0, reward_components={"format": -1.0}),
    )
    assert found["train/reward/format"] + found["train/reward/correct"] == pytest.approx(found["train/reward"])


def test_a_parse_error_is_a_missing_answer_or_an_unreadable_call() -> None:
    found = metrics(
        played(0.0, extracted_answer=None),
        played(0.0, finish_reason="unreadable_call"),
        played(1.0, extracted_answer="18"),
        played(1.0),
    )
    assert found["train/parse_err_rate"] == 0.5


def test_completion_lengths_count_every_generated_token_even_of_sequences_without_a_loss() -> None:
    """Bug L10 of the GSM8K scripts: the mean was before truncation, the total after it."""
    version = {"policy_version": "step_000000"}
    # The 10 tokens between the turns are those of the environment.
    turns = turn([1], [2] * 30, **version), turn([1, *[2] * 30, *[7] * 10], [3] * 20, **version)
    made = batch(
        played(1.0, *turns),
        played(0.0, turn([1], [2] * 10, **version), finish_reason="length"),
    )
    update = update_of(made.groups, max_seq_len=40, temperature=1.0)
    found = step_metrics(made, {}, TIMES, update=update)
    assert update.too_long == 1 and found["train/seq_too_long_rate"] == 1.0
    assert (found["train/avg_completion_length"], found["train/total_completion_tokens"]) == (30.0, 60)
    assert found["perf/tokens_per_s"] == 15.0 and found["perf/rollouts_per_s"] == 0.5


def test_groups_without_variance_and_failures_are_counted() -> None:
    found = metrics(
        *(played(1.0, task="equal") for _ in range(2)),
        *(played(reward, task="learn") for reward in (0.0, 1.0)),
        *(played(1.0, task="alone"), failed(task="alone")),
        timeout=2,
        unreachable=1,
    )
    assert found["train/zero_variance_rate"] == pytest.approx(1 / 3) and found["train/skipped_groups"] == 2
    assert found["train/failed_rollouts"] == 3 and found["train/failed_rollouts/timeout"] == 2


def test_figures_of_the_update_and_the_parity_probe_get_the_training_prefix() -> None:
    trainer = {"loss": 0.25, "kl": 0.01, "parity_mean": 0.5, "parity_max": 0.9}
    found = step_metrics(batch(played(1.0)), trainer, TIMES, parity={"mean": 1e-6, "max": 1e-5})
    assert (found["train/loss"], found["train/kl"]) == (0.25, 0.01)
    assert (found["train/parity_mean"], found["train/parity_max"]) == (1e-6, 1e-5)


def test_staleness_counts_the_updates_since_each_token_with_a_loss_was_sampled() -> None:
    spans = [{"start": 0, "end": 3, "version": "step_000003"}, {"start": 3, "end": 4, "version": "step_000004-r1"}]
    masked = played(1.0, version="step_000001", finish_reason="length")
    found = metrics(played(1.0, turn([1], [2, 3, 4, 5], weight_versions=spans)), masked, step=5)
    assert found["train/stale_rate"] == 5 / 6 and found["train/staleness_mean"] == 9 / 6
    assert found["train/policy_lag"] == 3


@pytest.mark.parametrize(("version", "message"), [(None, "unknown"), ("v1", "version 'v1'")])
def test_an_unknown_version_is_an_error_and_never_a_staleness_of_0(version: Any, message: str) -> None:
    """Bug L12 of the GSM8K scripts."""
    with pytest.raises(RunError, match=message):
        metrics(played(1.0, version=version), step=5)


def test_a_step_without_a_measured_rollout_has_no_made_up_values() -> None:
    found = metrics(failed(), failed(), timeout=2)
    assert not [name for name in found if name.startswith(("train/reward", "train/correct", "train/stale"))]
    assert found["train/failed_rollouts"] == 2 and found["perf/rollout_wait_s"] == 2.0
