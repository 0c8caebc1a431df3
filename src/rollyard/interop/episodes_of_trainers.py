"""Episode: a rollout in the form in which other projects' trainers take it, as sequences of tokens with one reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rollyard.records.errors import RunError
from rollyard.training.groups.member import GroupMember
from rollyard.training.sequences.training_sequence import TrainingSequence
from rollyard.training.versions import updates_of

SeveralSequences = Literal["all", "mask", "last", "refuse"]

_ADVICE = (
    "Let the agent keep its history as it was sampled, or choose several_sequences: all (where the trainer takes "
    "several), last, or mask"
)


@dataclass(frozen=True, slots=True)
class EpisodeRules:
    """How rollouts become episodes."""

    several_sequences: SeveralSequences = "mask"
    """What to do with a rollout whose history changed, so that its tokens are several sequences. `all`: hand over each
    of them. `mask`: the last one, without a loss. `last`: the last one. `refuse`: stop the training."""
    temperature: float | None = None
    """The temperature at which the trainer computes log-probabilities; None: do not compare it."""


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


def episode_of(member: GroupMember, rules: EpisodeRules, filler_id: int) -> Episode:
    """Return a rollout as an episode. `filler_id`: the token of rollouts that have none.

    Raises RunError if it has several sequences and the rules refuse them, or was sampled at another temperature.
    """
    kept = member.sequences[-1:] if rules.several_sequences != "all" else member.sequences
    has_loss = member.has_loss
    if has_loss and len(member.sequences) > len(kept):
        if rules.several_sequences == "refuse":
            raise RunError(f"the tokens of a rollout are {len(member.sequences)} sequences. {_ADVICE}")
        has_loss = rules.several_sequences == "last"
    if not has_loss:
        kept = tuple(replace(sequence, loss_mask=[0] * len(sequence.loss_mask)) for sequence in kept)
    _check_temperatures(kept, rules.temperature)
    return Episode(member, kept or (_filler(filler_id),))


def ranges_of(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of each stretch of ones."""
    edges = list(zip([0, *mask], [*mask, 0], strict=True))
    starts = [index for index, (before, now) in enumerate(edges) if now and not before]
    ends = [index for index, (before, now) in enumerate(edges) if before and not now]
    return list(zip(starts, ends, strict=True))


def version_number(version: str) -> int | None:
    """Return the number in the name of a version, such as 12 for `12` and `step_000012`; None if it has none."""
    if version.isdecimal():
        return int(version)
    try:
        return updates_of(version)
    except RunError:
        return None


def _check_temperatures(sequences: Sequence[TrainingSequence], expected: float | None) -> None:
    for sequence in sequences:
        if expected is not None and sequence.loss_tokens and abs(sequence.temperature - expected) > 1e-6:
            raise RunError(
                f"a rollout was sampled at temperature {sequence.temperature:g}, but the trainer samples at "
                f"{expected:g}. Set it in the trainer only, and start vLLM with --logprobs-mode processed_logprobs"
            )


def _filler(token: int) -> TrainingSequence:
    return TrainingSequence([token], [token], [0], [0.0], [0], [None], 1.0)
