"""TokenPairs: log-probabilities of engine and trainer for a sample of an update's tokens, and the file of a step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from rollyard.records.errors import RunError
from rollyard.records.jsonl import replace
from rollyard.records.types import Json
from rollyard.training.update import Batch, Update

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
    """Return the pairs with the largest absolute difference."""
    return tuple(sorted(pairs, key=lambda pair: -abs(pair.trainer - pair.engine))[:count])


def write_pairs(path: Path, pairs: TokenPairs, batch: Batch, update: Update) -> None:
    """Write the file of a step. Raises RunError."""
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
    return {
        "task": task,
        "repeat": repeat,
        "index": len(sequence.prompt_ids) + pair.position,
        "id": sequence.completion_ids[pair.position],
        "engine": pair.engine,
        "trainer": pair.trainer,
        "entropy": pair.entropy,
        "clipped": pair.clipped,
    }
