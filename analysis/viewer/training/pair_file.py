"""PairFile: log-probabilities of engine and trainer for some tokens of a step, as `ng_train` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import RunError
from rollyard.records.io.json_values import items, mapping, number, whole_number


@dataclass(frozen=True)
class TokenPair:
    """A token with a loss."""

    task: int
    repeat: int
    index: int
    """Index in its training sequence, prompt included."""
    id: int
    engine: float
    trainer: float
    entropy: float | None
    clipped: bool


@dataclass(frozen=True)
class PairFile:
    """The file of a step."""

    tokens: int
    clipped: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    """Number of tokens by log-ratio, with one number more than `edges`; empty if they do not fit together."""
    sample: tuple[TokenPair, ...]
    largest: tuple[TokenPair, ...]
    not_finite: int
    """Number of recorded tokens that are left out because the log-probability of engine or trainer is not a number."""


NO_PAIRS = PairFile(tokens=0, clipped=0, edges=(), counts=(), sample=(), largest=(), not_finite=0)


def read_pairs(path: Path) -> PairFile:
    """Read the file of a step. Raises RunError, which names the file and the problem in one sentence."""
    name = f"{path.parent.name}/{path.name}"
    try:
        record = orjson.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{name} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise RunError(f"{name} is not valid JSON ({error}); expected a file of ng_train") from error
    if not isinstance(record, dict):
        raise RunError(f"{name} contains no JSON object; expected a file of ng_train")
    edges = tuple(edge for value in items(record.get("log_ratio_edges")) if (edge := number(value, None)) is not None)
    found = items(record.get("log_ratio_counts"))
    counts = tuple(count for value in found if (count := whole_number(value, least=0)) is not None)
    sample, largest = (list(_pairs(record.get(name))) for name in ("sample", "largest"))
    return PairFile(
        tokens=whole_number(record.get("tokens"), least=0) or 0,
        clipped=whole_number(record.get("clipped"), least=0) or 0,
        edges=edges,
        counts=counts if edges and len(counts) == len(edges) + 1 else (),
        sample=tuple(pair for pair in sample if isinstance(pair, TokenPair)),
        largest=tuple(pair for pair in largest if isinstance(pair, TokenPair)),
        not_finite=len({pair for pair in sample + largest if isinstance(pair, tuple)}),
    )


def _pairs(values: Any) -> Iterator[TokenPair | tuple[int, ...]]:
    """Yield the valid pairs, and only (task, repeat, index, id) if a log-probability is not a finite number."""
    for value in map(mapping, items(values)):
        found = [whole_number(value.get(name)) for name in ("task", "repeat", "index", "id")]
        whole = tuple(one for one in found if one is not None)
        engine, trainer = number(value.get("engine"), None), number(value.get("trainer"), None)
        if len(whole) < len(found):
            continue
        if engine is None or trainer is None:
            yield whole
            continue
        task, repeat, index, token = whole
        entropy = number(value.get("entropy"), None)
        yield TokenPair(task, repeat, index, token, engine, trainer, entropy, value.get("clipped") is True)
