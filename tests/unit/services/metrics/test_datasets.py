"""The parts of a mixture in the report's numbers."""

from __future__ import annotations

from pathlib import Path

from tests.support.rollout_files import row, run_of, solved, varied


def test_the_parts_of_a_mixture_are_told_apart(tmp_path: Path) -> None:
    rows = [row(i, 0, float(i), dataset_name="rooms" if i < 2 else "gsm8k") for i in range(5)]
    groups = run_of(tmp_path, rows).profile.by_dataset
    assert [(group.name, group.rollouts, group.mean_reward) for group in groups] == [
        ("gsm8k", 3, 3.0),
        ("rooms", 2, 0.5),
    ]
    assert run_of(tmp_path, rows[:2]).profile.by_dataset == []


def test_each_part_of_a_mixture_has_intervals_and_pass_at_k_as_if_it_were_alone(tmp_path: Path) -> None:
    rows = varied(12, 4)
    parts = [{**one, "dataset_name": "ab"[one["_ng_task_index"] % 2]} for one in rows]
    for found in run_of(tmp_path, parts).profile.by_dataset:
        alone = run_of(tmp_path, [one for one in parts if one["dataset_name"] == found.name], "alone").profile
        assert alone.solved is not None and alone.rewards is not None and alone.tasks is not None
        assert (found.rate, found.reward) == (alone.solved.rate, alone.rewards.mean)
        assert found.pass_at == alone.tasks.pass_at and found.tasks == 6


def test_data_sets_on_different_scales_have_no_mean_reward_in_the_headline(tmp_path: Path) -> None:
    rows = [
        solved(task, 0, task % 3 == 0, dataset_name=name, agent_ref={"name": name}) | {"reward": reward}
        for task, (name, reward) in enumerate([("rooms", -4.0), ("sums", 1.0 / 3), ("rooms", 10.0), ("sums", 1.0)])
    ]
    profile = run_of(tmp_path, rows).profile
    assert profile.rewards is not None and "in rooms they range from -4 to 10" in profile.rewards.why_no_mean
    assert profile.solved is not None  # success means the same in both
    one_agent = [{**one, "agent_ref": {"name": "player"}} for one in rows]
    again = run_of(tmp_path, one_agent).profile.rewards
    assert again is not None and again.why_no_mean == ""


def test_each_data_set_decides_by_itself_what_solved_means(tmp_path: Path) -> None:
    rows = [solved(0, 0, True, dataset_name="a"), row(1, 0, 1.0, dataset_name="b"), row(2, 0, 0.5, dataset_name="b")]
    assert [(one.name, one.solved) for one in run_of(tmp_path, rows).profile.by_dataset] == [("a", 1), ("b", 1)]
    silent = run_of(tmp_path, [*rows, row(3, 0, 7.0, dataset_name="b")]).profile
    assert silent.solved is None and [one.solved for one in silent.by_dataset] == [1, None]
