"""RowNumbers: numbers of the verdict in each row of a file, beside the columns that every report has."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollyard.analysis.metrics.loader.columns import Floats, Ints, displayable
from rollyard.records.io.json_values import is_number
from rollyard.records.rollouts.tokens.model_calls import generated_log_probs, least_entropy, model_calls
from rollyard.records.types import MAX_REWARD, TOKEN_FIELDS

COMPONENTS = "reward_components"
RARE = math.log(0.01)
"""Log-probability below which a token counts as rare."""
LOG_PROB, RARE_TOKENS, TOKEN_ENTROPY = "log_prob", "rare_tokens", "token_entropy"
"""Of the recorded tokens of a rollout: mean log-probability, share with a probability below 1%, and mean of the lower
bounds of the entropies.
"""
_MAX_NAMES = 64
"""Upper bound on the fields of a file, because rows are user input."""
_MAX_DEPTH = 3
_OTHERS = frozenset(
    {
        *("responses_create_params", "response", "reward", "success", "timings", "token_trail", "agent_ref"),
        *("mask_sample", "truncated", "total_reward", "step_rewards", "reset_info", "usage", *TOKEN_FIELDS),
    }
)
"""Keys that have columns of their own, or that are not part of a verdict."""


@dataclass(frozen=True)
class NumberColumns:
    """The numbers of rows, with NaN for missing values. All arrays have the same length."""

    offset: Ints
    """Byte offset of each row in the file."""
    values: dict[str, Floats]
    """By dotted name, such as `reward_components.format`. True is 1 and false is 0."""

    def at(self, offsets: Ints) -> dict[str, Floats]:
        """Return the numbers of the rows that begin at `offsets`."""
        order = np.argsort(self.offset)
        rows = order[np.searchsorted(self.offset, offsets, sorter=order)]
        return {name: column[rows] for name, column in self.values.items()}


class RowNumbers:
    """Collects the numbers of rows."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._values: dict[str, array[float]] = {}

    def add(self, row: Mapping[str, Any], offset: int) -> None:
        """Add the row that begins at byte `offset`."""
        count = len(self._offsets)
        self._offsets.append(offset)
        for name, value in _numbers(row):
            column = self._values.get(name)
            if column is None:
                if len(self._values) >= _MAX_NAMES:
                    continue
                column = self._values[name] = array("d")
            if len(column) <= count:  # a name that occurs twice counts once
                column.extend([math.nan] * (count - len(column)))
                column.append(value)

    def columns(self) -> NumberColumns:
        """Return what was collected, in the order in which rows were added."""
        count = len(self._offsets)
        values = {
            name: np.concatenate([column, np.full(count - len(column), np.nan)])
            for name, column in self._values.items()
        }
        return NumberColumns(np.array(self._offsets, np.int64), values)


def joined(parts: Sequence[NumberColumns]) -> NumberColumns:
    """Concatenate parts of a file."""
    names = list(dict.fromkeys(name for part in parts for name in part.values))[:_MAX_NAMES]
    values = {
        name: np.concatenate([part.values.get(name, np.full(len(part.offset), np.nan)) for part in parts])
        for name in names
    }
    return NumberColumns(np.concatenate([part.offset for part in parts]), values)


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if key not in _OTHERS and not key.startswith("_ng_"):
            yield from _leaves(displayable(key), value, 1)
    yield from _token_numbers(row)


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    if isinstance(value, bool) or is_number(value, MAX_REWARD):
        yield name, float(value)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{displayable(str(key))}", inner, depth + 1)


def _token_numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    log_probs = [value for values in generated_log_probs(row) for value in values]
    entropies: list[float] = []
    for call in model_calls(row):
        entropies += [bound for entry in call.entries if (bound := least_entropy(entry)) is not None]
    if log_probs:
        yield LOG_PROB, sum(log_probs) / len(log_probs)
        yield RARE_TOKENS, sum(value < RARE for value in log_probs) / len(log_probs)
    if entropies:
        yield TOKEN_ENTROPY, sum(entropies) / len(entropies)
