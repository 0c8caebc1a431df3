"""Rollouts in the form in which other projects' trainers take them: sequences of tokens with one reward (Episode), and
rewards and advantages of groups, some of whose rollouts do not count.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rollyard.records.errors import RunError
from rollyard.training.groups import GroupMember
from rollyard.training.run_folder import updates_of
from rollyard.training.training_sequence import TrainingSequence, check_temperature

SeveralSequences = Literal["all", "mask", "last", "refuse"]
"""What to do with a rollout whose history changed, so that its tokens are several sequences. `all`: hand over each of
them. `mask`: the last one, without a loss. `last`: the last one. `refuse`: stop the training."""

_ADVICE = (
    "Let the agent keep its history as it was sampled, or choose several_sequences: all (where the trainer takes "
    "several), last, or mask"
)


@dataclass(frozen=True, slots=True)
class Episode:
    """A rollout whose tokens without a loss are masked."""

    member: GroupMember
    sequences: tuple[TrainingSequence, ...]
    """Never empty: a rollout without tokens has one sequence of two tokens, which has no loss."""

    @property
    def reward(self) -> float:
        """The reward; NaN if the rollout does not count."""
        return self.member.reward if self.member.counts else math.nan

    @property
    def turns(self) -> int:
        """Number of model calls, counted by the stretches of tokens of the policy."""
        return sum(len(ranges_of(sequence.loss_mask)) for sequence in self.member.sequences)

    @property
    def versions(self) -> list[str]:
        """Versions of the weights that sampled its tokens, in the order of their first token. A name with a number,
        such as step_000012, becomes the number.
        """
        found = [version for sequence in self.sequences for version in sequence.versions if version is not None]
        numbers = {version: version_number(version) for version in found}
        return [version if number is None else str(number) for version, number in numbers.items()]


def episode_of(member: GroupMember, several: SeveralSequences, temperature: float | None, filler_id: int) -> Episode:
    """Return a rollout as an episode. `temperature`: at which the trainer computes log-probabilities; None: do not
    compare it. `filler_id`: the token of rollouts that have none.

    Raises RunError if it has several sequences that are refused, or was sampled at another temperature.
    """
    kept = member.sequences[-1:] if several != "all" else member.sequences
    has_loss = member.has_loss
    if has_loss and len(member.sequences) > len(kept):
        if several == "refuse":
            raise RunError(f"the tokens of a rollout are {len(member.sequences)} sequences. {_ADVICE}")
        has_loss = several == "last"
    if not has_loss:
        kept = tuple(replace(sequence, loss_mask=[0] * len(sequence.loss_mask)) for sequence in kept)
    for sequence in kept:
        if temperature is not None and sequence.loss_tokens:
            check_temperature(sequence, temperature, "the trainer only")
    filler = TrainingSequence([filler_id], [filler_id], [0], [0.0], [0], [None], 1.0)
    return Episode(member, kept or (filler,))


def ranges_of(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of each stretch of ones."""
    edges = list(zip([0, *mask], [*mask, 0], strict=True))
    starts = [index for index, (before, now) in enumerate(edges) if now and not before]
    ends = [index for index, (before, now) in enumerate(edges) if before and not now]
    return list(zip(starts, ends, strict=True))


def version_number(version: str) -> int | None:
    """Return the number in the name of a version, such as 12 for `12` and `step_000012`; None if it has none."""
    with contextlib.suppress(RunError):
        return int(version) if version.isdecimal() else updates_of(version)
    return None


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
