"""How old the weights are that sampled a rollout, counted in updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollyard.training.sequences.training_sequence import TrainingSequence
from rollyard.training.versions import updates_of


@dataclass(frozen=True, slots=True)
class PolicyAge:
    """The oldest and newest weights that sampled a rollout, by the number of updates that they had received."""

    oldest: int
    newest: int


def policy_age(sequences: Iterable[TrainingSequence]) -> PolicyAge | None:
    """Return the weights that sampled the tokens with a loss; None if there are no such tokens.

    Raises RunError if the weights of a token are unknown. To count them as some version would let rollouts of any age
    pass.
    """
    names = {
        version
        for sequence in sequences
        for version, has_loss in zip(sequence.versions, sequence.loss_mask, strict=True)
        if has_loss
    }
    steps = sorted(map(updates_of, names))
    return PolicyAge(steps[0], steps[-1]) if steps else None
