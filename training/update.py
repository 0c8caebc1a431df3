"""From groups to an update: Batch is what a step gets from the stack, Update the sequences of it that have a loss, and
micro_batches says which of them go through the model together.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import orjson

from rollyard.records.errors import RunError
from rollyard.records.jsonl import replace
from rollyard.records.types import Json
from rollyard.training.groups import RolloutGroup
from rollyard.training.training_sequence import TrainingSequence, check_temperature


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of one update, skipped ones included."""

    step: int
    """Number of the update, counted from 1."""
    groups: tuple[RolloutGroup, ...]
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


@dataclass(frozen=True, slots=True)
class Update:
    """`sequences`, `advantages` and `episodes` have the same length. All tokens of an episode share its advantage."""

    sequences: tuple[TrainingSequence, ...]
    advantages: tuple[float, ...]
    episodes: tuple[int, ...]
    """A number for the episode of each sequence: the agent may have cut an episode into several sequences."""
    too_long: int = 0
    """Number of sequences without a loss because they exceed the maximum length."""

    @property
    def loss_tokens(self) -> int:
        return sum(sequence.loss_tokens for sequence in self.sequences)

    @property
    def episode_tokens(self) -> Counter[int]:
        """Number of tokens with a loss by episode."""
        tokens = Counter[int]()
        for episode, sequence in zip(self.episodes, self.sequences, strict=True):
            tokens[episode] += sequence.loss_tokens
        return tokens


def update_of(groups: Iterable[RolloutGroup], *, max_seq_len: int, temperature: float) -> Update:
    """Select the sequences that have a loss. Longer ones than `max_seq_len` tokens have none: truncated ones would be
    other episodes than those that were rewarded.

    Raises RunError if a sequence was not sampled at `temperature`, at which the trainer computes log-probabilities.
    """
    chosen: list[tuple[TrainingSequence, float, int]] = []
    too_long = 0
    played = (
        pair for group in groups if not group.skipped for pair in zip(group.members, group.advantages, strict=True)
    )
    for episode, (member, advantage) in enumerate(played):
        for sequence in member.sequences if member.has_loss else ():
            if sequence.length > max_seq_len:
                too_long += 1
            elif sequence.loss_tokens:
                check_temperature(sequence, temperature, "responses_create_params, not in the rows")
                chosen.append((sequence, advantage, episode))
    return Update(
        tuple(sequence for sequence, _, _ in chosen),
        tuple(advantage for _, advantage, _ in chosen),
        tuple(episode for _, _, episode in chosen),
        too_long,
    )


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


SAMPLED = 256
"""Number of tokens of an update that are chosen at random. A file of 288 pairs has about 40 kB."""
LARGEST = 32
"""Number of tokens with the largest differences that are recorded as well."""
_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
LOG_RATIO_EDGES = (*(-bound for bound in reversed(_BOUNDS)), *_BOUNDS)
"""Bounds of the histogram of log-ratios, in nats: differences of rounding and of other weights have their own bins."""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A token with a loss, at the weights before the update."""

    sequence: int
    """Index in the update."""
    position: int
    """Index in the completion of the sequence."""
    engine: float
    """Recorded log-probability."""
    trainer: float
    entropy: float
    clipped: bool
    """Whether the loss has no gradient because the ratio is clipped."""


@dataclass(frozen=True, slots=True)
class TokenPairs:
    """The tokens of an update with a loss, without those of constrained turns, whose recorded log-probabilities are of
    another distribution.
    """

    tokens: int
    clipped: int
    histogram: tuple[int, ...]
    """Number of tokens by log-ratio, with one number more than LOG_RATIO_EDGES."""
    sample: tuple[TokenPair, ...]
    largest: tuple[TokenPair, ...]
    """Largest absolute difference first."""


def chosen_tokens(update: Update, count: int = SAMPLED) -> dict[int, list[int]]:
    """Choose tokens with a loss at random, the same in every process: positions in the completion, by sequence."""
    # Its own generator, because training must not depend on what is recorded.
    random_tokens = random.Random(update.loss_tokens).sample(range(update.loss_tokens), min(count, update.loss_tokens))
    wanted = sorted(random_tokens)
    found: dict[int, list[int]] = {}
    start = 0
    for index, sequence in enumerate(update.sequences):
        end = start + sequence.loss_tokens
        inside = [token - start for token in wanted if start <= token < end]
        if inside:
            positions = [position for position, has_loss in enumerate(sequence.loss_mask) if has_loss]
            found[index] = [positions[token] for token in inside]
        start = end
    return found


def largest_of(pairs: Iterable[TokenPair], count: int = LARGEST) -> tuple[TokenPair, ...]:
    return tuple(sorted(pairs, key=lambda pair: -abs(pair.trainer - pair.engine))[:count])


def write_pairs(path: Path, pairs: TokenPairs, batch: Batch, update: Update) -> None:
    members = {
        id(sequence): (member.task_index, member.repeat)
        for group in batch.groups
        for member in group.members
        for sequence in member.sequences
    }
    record = {
        "step": batch.step,
        "tokens": pairs.tokens,
        "clipped": pairs.clipped,
        "log_ratio_edges": LOG_RATIO_EDGES,
        "log_ratio_counts": pairs.histogram,
        "sample": [_record(pair, update, members) for pair in pairs.sample],
        "largest": [_record(pair, update, members) for pair in pairs.largest],
    }
    try:
        path.parent.mkdir(exist_ok=True)
        replace(path, orjson.dumps(record) + b"\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def _record(pair: TokenPair, update: Update, members: Mapping[int, tuple[int, int]]) -> Json:
    sequence = update.sequences[pair.sequence]
    task, repeat = members[id(sequence)]
    values = asdict(pair)
    del values["sequence"], values["position"]
    index = len(sequence.prompt_ids) + pair.position
    return {"task": task, "repeat": repeat, "index": index, "id": sequence.completion_ids[pair.position], **values}
