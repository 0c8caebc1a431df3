"""The datasets of a mixture in the profile."""

from __future__ import annotations

from pathlib import Path

from tests.support.rollout_files import load_run, random_rows, row, solved


def test_each_dataset_of_a_mixture_has_a_group(tmp_path: Path) -> None:
    rows = [row(i, 0, float(i), dataset_name="rooms" if i < 2 else "gsm8k") for i in range(5)]
    groups = load_run(tmp_path, rows).profile.by_dataset
    assert [(group.name, group.rollouts, group.mean_reward) for group in groups] == [
        ("gsm8k", 3, 3.0),
        ("rooms", 2, 0.5),
    ]
    assert load_run(tmp_path, rows[:2]).profile.by_dataset == []


def test_each_dataset_of_a_mixture_has_the_intervals_and_pass_at_k_of_a_separate_run(tmp_path: Path) -> None:
    rows = random_rows(12, 4)
    parts = [{**row, "dataset_name": "ab"[row["_ng_task_index"] % 2]} for row in rows]
    for found in load_run(tmp_path, parts).profile.by_dataset:
        separate = load_run(tmp_path, [row for row in parts if row["dataset_name"] == found.name], "alone").profile
        assert separate.solved is not None and separate.rewards is not None and separate.tasks is not None
        assert (found.rate, found.reward) == (separate.solved.rate, separate.rewards.mean)
        assert found.pass_at == separate.tasks.pass_at and found.tasks == 6


def test_datasets_with_different_reward_scales_have_no_common_mean_reward(tmp_path: Path) -> None:
    rows = [
        solved(task, 0, task % 3 == 0, dataset_name=name, agent_ref={"name": name}) | {"reward": reward}
        for task, (name, reward) in enumerate([("rooms", -4.0), ("sums", 1.0 / 3), ("rooms", 10.0), ("sums", 1.0)])
    ]
    profile = load_run(tmp_path, rows).profile
    assert (
        profile.rewards is not None
        and "rooms" in profile.rewards.why_no_mean
        and "-4 to 10" in profile.rewards.why_no_mean
    )
    assert profile.solved is not None  # success has the same meaning in both
    one_agent = [{**row, "agent_ref": {"name": "agent"}} for row in rows]
    rewards_of_one_agent = load_run(tmp_path, one_agent).profile.rewards
    assert rewards_of_one_agent is not None and rewards_of_one_agent.why_no_mean == ""


def test_the_rule_for_solved_is_chosen_per_dataset(tmp_path: Path) -> None:
    rows = [solved(0, 0, True, dataset_name="a"), row(1, 0, 1.0, dataset_name="b"), row(2, 0, 0.5, dataset_name="b")]
    assert [(dataset.name, dataset.solved) for dataset in load_run(tmp_path, rows).profile.by_dataset] == [
        ("a", 1),
        ("b", 1),
    ]
    no_rule = load_run(tmp_path, [*rows, row(3, 0, 7.0, dataset_name="b")]).profile
    assert no_rule.solved is None and [dataset.solved for dataset in no_rule.by_dataset] == [1, None]
