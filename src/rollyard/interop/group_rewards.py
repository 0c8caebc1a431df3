"""Rewards and advantages of groups, some of whose rollouts do not count."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence


def with_group_means(rewards: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Replace each NaN with the mean of the other rewards of its group, so that the group's mean stays what it is.

    For trainers that compute baselines from all rewards of a group. 0 if none of a group counts.
    """
    counted: dict[Hashable, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        if not math.isnan(reward):
            counted[group].append(reward)
    means = {group: statistics.fmean(values) for group, values in counted.items()}
    return [
        means.get(group, 0.0) if math.isnan(reward) else reward for reward, group in zip(rewards, groups, strict=True)
    ]


def group_advantages(
    rewards: Sequence[float], groups: Sequence[Hashable], rollouts: Sequence[Hashable], *, scaled: bool, epsilon: float
) -> list[float]:
    """Return (reward - mean of the group), divided by (its standard deviation + `epsilon`) if `scaled`.

    `rewards`: one per sequence. Sequences with the same group and entry in `rollouts` belong to one rollout, which
    counts once. NaN does not count, and its advantage is 0, as is that of a rollout that is alone.
    """
    counted: dict[Hashable, dict[Hashable, float]] = defaultdict(dict)
    for reward, group, rollout in zip(rewards, groups, rollouts, strict=True):
        if not math.isnan(reward):
            counted[group][rollout] = reward
    advantages = []
    for reward, group in zip(rewards, groups, strict=True):
        values = list(counted[group].values())
        if math.isnan(reward) or len(values) < 2:
            advantages.append(0.0)
            continue
        divisor = statistics.stdev(values) + epsilon if scaled else 1.0
        advantages.append((reward - statistics.fmean(values)) / divisor)
    return advantages
