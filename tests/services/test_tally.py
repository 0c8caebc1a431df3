from __future__ import annotations

import numpy as np
import pytest

from services.tally import Tally


class Clock:
    """Time that passes when told."""

    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_mean_and_standard_error_are_numpys(seed: int, scale: float) -> None:
    rewards = np.random.default_rng(seed).normal(1000.0, scale, size=1 + 500 * seed + 1)
    tally = Tally(len(rewards))
    for reward in rewards:
        tally.count({"reward": float(reward)})
    assert tally.rewards.value == pytest.approx(rewards.mean(), rel=1e-12)
    assert tally.rewards.stderr == pytest.approx(rewards.std(ddof=1) / np.sqrt(len(rewards)), rel=1e-6)


def test_there_is_no_mean_of_nothing_and_no_error_of_one() -> None:
    tally = Tally(2)
    assert tally.rewards.value is None and tally.rewards.stderr is None and tally.successes is None
    tally.count({"reward": 1})
    assert tally.rewards.value == 1.0 and tally.rewards.stderr is None


def test_each_part_of_a_mixture_has_a_mean_of_its_own() -> None:
    tally = Tally(5)
    for name, reward in (("rooms", -4.0), ("gsm8k", 1.0), ("rooms", 10.0), ("gsm8k", 0.0), (None, 5.0)):
        tally.count({"reward": reward, "dataset_name": name})
    assert {name: (rewards.count, rewards.value) for name, rewards in tally.by_dataset.items()} == {
        "rooms": (2, 3.0),
        "gsm8k": (2, 0.5),
    }


def test_resumed_rows_count_in_the_mean_but_not_in_the_rate() -> None:
    clock = Clock()
    tally = Tally(10, clock)
    for _ in range(6):
        tally.count({"reward": 1})
    clock.now += 1000.0
    tally.resumed()
    clock.now += 2.0
    tally.count({"reward": 0})
    assert (tally.measured, tally.collected, tally.rate) == (7, 1, 0.5)
    assert tally.rewards.value == pytest.approx(6 / 7) and tally.eta_s == pytest.approx(6.0)


def test_successes_are_counted_only_where_a_world_reports_them() -> None:
    tally = Tally(4)
    tally.count({"reward": 1})
    assert tally.successes is None
    tally.count({"reward": 1, "success": True})
    tally.count({"reward": 0, "success": False})
    assert tally.successes == 1


def test_the_time_left_leaves_out_what_was_given_up() -> None:
    clock = Clock()
    tally = Tally(10, clock)
    clock.now += 4.0
    for _ in range(4):
        tally.count({"reward": 1})
    tally.count_failure("timeout", given_up=False)
    tally.count_failure("timeout", given_up=True)
    assert tally.eta_s == pytest.approx(5.0) and (tally.failed, tally.failed_attempts) == (1, 2)


def test_before_the_first_rollout_there_is_no_time_left_to_tell() -> None:
    assert Tally(10).eta_s is None


def test_the_status_says_what_is_measured_of_what_was_asked() -> None:
    tally = Tally(3)
    tally.count({"reward": 1, "success": True})
    tally.count_failure("timeout", given_up=True)
    status = tally.status("incomplete", "because")
    assert (status.measured, status.expected, status.failed, status.failures) == (1, 3, 1, {"timeout": 1})
    assert (status.state, status.note, status.successes, status.reward_stderr) == ("incomplete", "because", 1, None)
