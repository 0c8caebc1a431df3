"""Update: the sequences of one step's groups that have a loss, with their advantages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollyard.records.errors import RunError
from rollyard.training.groups.advantages import Group
from rollyard.training.sequences.training_sequence import TrainingSequence


@dataclass(frozen=True, slots=True)
class Update:
    """`sequences` and `advantages` have the same length. All tokens of a sequence share its advantage."""

    sequences: tuple[TrainingSequence, ...]
    advantages: tuple[float, ...]
    too_long: int = 0
    """Number of sequences without a loss because they exceed the maximum length."""

    @property
    def loss_tokens(self) -> int:
        """Number of tokens with a loss."""
        return sum(sequence.loss_tokens for sequence in self.sequences)


def update_of(groups: Iterable[Group], *, max_seq_len: int, temperature: float) -> Update:
    """Select the sequences that have a loss. Sequences longer than `max_seq_len` tokens have none: truncated ones would
    be other episodes than those that were rewarded.

    Raises RunError if a sequence was not sampled at `temperature`, at which the trainer computes log-probabilities.
    """
    chosen: list[tuple[TrainingSequence, float]] = []
    too_long = 0
    for group in groups:
        if group.skipped:
            continue
        for member, advantage in zip(group.members, group.advantages, strict=True):
            for sequence in member.sequences if member.has_loss else ():
                if sequence.length > max_seq_len:
                    too_long += 1
                elif sequence.loss_tokens:
                    _check_temperature(sequence, temperature)
                    chosen.append((sequence, advantage))
    return Update(tuple(sequence for sequence, _ in chosen), tuple(advantage for _, advantage in chosen), too_long)


def _check_temperature(sequence: TrainingSequence, expected: float) -> None:
    if abs(sequence.temperature - expected) > 1e-6:
        raise RunError(
            f"recorded log-probabilities are at temperature {sequence.temperature:g}, but the trainer computes its own "
            f"at {expected:g}. Set the temperature in responses_create_params, without one in the rows, and start vLLM "
            "with --logprobs-mode processed_logprobs"
        )
