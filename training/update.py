"""From groups to an update: Batch is what a step gets from the stack, Update the sequences of it that have a loss, and
micro_batches says which of them go through the model together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollyard.training.groups import Group
from rollyard.training.sequences.training_sequence import TrainingSequence, check_temperature


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of one update, skipped ones included."""

    step: int
    """Number of the update, counted from 1."""
    groups: tuple[Group, ...]
    position: Mapping[str, int]
    """Position in the data after this batch, for the checkpoint."""
    wait_s: float = 0.0
    """Seconds for which the trainer waited for the rollouts."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of permanently failed rollouts by failure kind, and as `stale` of those whose weights were too old."""


class BatchSource(Protocol):
    """Plays episodes and returns them as batches."""

    async def next_batch(self, step: int) -> Batch | None:
        """Return the batch of an update; None if the data is exhausted.

        Raises RunError if too many rollouts fail or the stack cannot be reached.
        """
        ...


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
                    check_temperature(sequence, temperature, "responses_create_params, not in the rows")
                    chosen.append((sequence, advantage))
    return Update(tuple(sequence for sequence, _ in chosen), tuple(advantage for _, advantage in chosen), too_long)


def micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Return the indices of the sequences of each micro-batch.

    A micro-batch takes (number of sequences) x (length of the longest) tokens. Sequences are sorted by length, so that
    little of it is padding, and micro-batches are filled up to `token_budget`.

    Raises ValueError if one sequence alone exceeds the budget.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if lengths[index] > token_budget:
            raise ValueError(
                f"a sequence of {lengths[index]} tokens exceeds the micro-batch budget of {token_budget} tokens: raise "
                "micro_token_budget or lower max_seq_len"
            )
        # The first sequence of a micro-batch is its longest.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= token_budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
