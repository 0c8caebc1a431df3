"""Advantages: how much better a rollout was than the others of its group."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rollyard.training.groups.member import GroupMember

Scale = Literal["group", "batch", "none"]
"""By which standard deviation advantages are divided: that of the group, of all rewards of the batch, or none."""
SkipReason = Literal["too_few_members", "zero_variance", "no_loss"]
"""Why a group is skipped. `no_loss`: no token of it has a loss."""

_EPSILON = 1e-4
"""TRL (1.16) adds it to the standard deviation."""
_MIN_DEVIATION = 1e-6
"""Standard deviations below count as zero: rewards that differ by less are equal but for rounding."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task. `advantages` has a number for each member, 0 for those that are left out."""

    task_key: str
    members: tuple[GroupMember, ...]
    advantages: tuple[float, ...]
    skipped: SkipReason | None = None
    """Why the group does not take part in the update; None if it does. Its advantages are then 0."""


def groups_of(members: Iterable[GroupMember], *, scale: Scale, min_members: int = 2) -> list[Group]:
    """Group rollouts by task, in the order of each task's first member, and compute their advantages.

    An advantage is (reward - mean of the group) / (standard deviation + 1e-4), as in TRL's GRPOTrainer: mean and
    standard deviation are over the members that count, and the latter is the sample's (divisor n - 1). A group with
    fewer than `min_members` members that count, with equal rewards or without a token to train on is skipped. Rewards
    of skipped groups count in the standard deviation of the batch.
    """
    by_task: dict[str, list[GroupMember]] = defaultdict(list)
    for member in members:
        by_task[member.task_key].append(member)
    batch = _deviation([member.reward for found in by_task.values() for member in found if member.counts])
    return [_group(key, found, scale, batch, min_members) for key, found in by_task.items()]


def _group(key: str, members: Sequence[GroupMember], scale: Scale, batch: float, min_members: int) -> Group:
    rewards = [member.reward for member in members if member.counts]
    skipped = _skip_reason(members, rewards, min_members)
    advantages = (0.0,) * len(members)
    if skipped is None:
        mean = statistics.fmean(rewards)
        divisor = {"group": _deviation(rewards) + _EPSILON, "batch": batch + _EPSILON, "none": 1.0}[scale]
        advantages = tuple((member.reward - mean) / divisor if member.counts else 0.0 for member in members)
    return Group(key, tuple(members), advantages, skipped)


def _skip_reason(members: Sequence[GroupMember], rewards: Sequence[float], min_members: int) -> SkipReason | None:
    if len(rewards) < max(2, min_members):
        return "too_few_members"
    if _deviation(rewards) < _MIN_DEVIATION:
        return "zero_variance"
    return None if any(member.has_loss for member in members) else "no_loss"


def _deviation(rewards: Sequence[float]) -> float:
    return statistics.stdev(rewards) if len(rewards) > 1 else 0.0
