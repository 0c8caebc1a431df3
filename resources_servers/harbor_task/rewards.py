"""Reads the reward that a task's tests wrote."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from rollyard.records.io.json_values import is_number
from rollyard.records.types import MAX_REWARD

MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class TestReward:
    """The reward of the tests. If they wrote none, it is 0, because the model may have broken them."""

    __test__ = False  # not a class of tests

    reward: float
    rewards: dict[str, float] = field(default_factory=dict)
    """All values of reward.json."""
    problem: str = ""
    """Why there is no reward."""


def read_reward(json_file: bytes | None, text_file: bytes | None, key: str | None) -> TestReward:
    """Return the reward from the content of reward.json, or else from that of reward.txt (None: no such file)."""
    if json_file is not None:
        return _from_json(json_file, key)
    if text_file is None:
        return TestReward(0.0, problem="the tests wrote no reward")
    try:
        value = float(text_file.decode())
    except ValueError:
        return TestReward(0.0, problem=f"reward.txt is not a number: {text_file[:80]!r}")
    if not is_number(value, MAX_REWARD):
        return TestReward(0.0, problem=f"reward.txt is not a finite number: {text_file[:80]!r}")
    return TestReward(value)


def _from_json(content: bytes, key: str | None) -> TestReward:
    try:
        found = orjson.loads(content)
    except ValueError as error:
        return TestReward(0.0, problem=f"reward.json is not JSON: {error}")
    values = found if isinstance(found, dict) else {"reward": found}
    if not values or not all(is_number(value, MAX_REWARD) for value in values.values()):
        return TestReward(0.0, problem=f"reward.json is not an object of finite numbers: {content[:80]!r}")
    rewards = {str(name): float(value) for name, value in values.items()}
    wanted = key or "reward"
    if wanted in rewards:
        return TestReward(rewards[wanted], rewards)
    if key is not None:
        return TestReward(0.0, rewards, f"reward.json has no key {key!r}; it has {', '.join(rewards)}")
    return TestReward(sum(rewards.values()) / len(rewards), rewards)
