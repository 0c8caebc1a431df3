"""PairFile: log-probabilities of engine and trainer for some tokens of a step, as `ng_train` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.services.errors import RunError
from rollyard.services.io.json_values import items, mapping, number, whole_number


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


def read_pairs(path: Path) -> PairFile:
    """Read the file of a step. Raises RunError if it is not one, and OSError if it cannot be read."""
    try:
        record = mapping(orjson.loads(path.read_bytes()))
    except orjson.JSONDecodeError as error:
        raise RunError(f"{path} is not valid JSON ({error}); expected a file of ng_train") from error
    edges = tuple(edge for value in items(record.get("log_ratio_edges")) if (edge := number(value, None)) is not None)
    found = items(record.get("log_ratio_counts"))
    counts = tuple(count for value in found if (count := whole_number(value, least=0)) is not None)
    return PairFile(
        tokens=whole_number(record.get("tokens"), least=0) or 0,
        clipped=whole_number(record.get("clipped"), least=0) or 0,
        edges=edges,
        counts=counts if edges and len(counts) == len(edges) + 1 else (),
        sample=tuple(_pairs(record.get("sample"))),
        largest=tuple(_pairs(record.get("largest"))),
    )


def _pairs(values: Any) -> Iterator[TokenPair]:
    """Yield the valid pairs."""
    for value in map(mapping, items(values)):
        whole = [whole_number(value.get(name)) for name in ("task", "repeat", "index", "id")]
        engine, trainer = number(value.get("engine"), None), number(value.get("trainer"), None)
        if None in whole or engine is None or trainer is None:
            continue
        task, repeat, index, token = (one or 0 for one in whole)
        entropy = number(value.get("entropy"), None)
        yield TokenPair(task, repeat, index, token, engine, trainer, entropy, value.get("clipped") is True)
