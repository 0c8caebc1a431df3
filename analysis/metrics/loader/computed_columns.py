"""The columns that a rollout file's index computes from its rows, by the names that expressions give them."""

from __future__ import annotations

import numpy as np

from rollyard.analysis.metrics.loader.columns import CategoryColumn, Columns
from rollyard.records.expressions.column import Column, column_of, numbers, truths

_NUMBERS = (
    "task",
    "repeat",
    "reward",
    "tool_calls",
    "turns",
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
)
_CATEGORIES = ("end", "agent", "model", "dataset")
COMPUTED = (*_NUMBERS, "success", "seconds", *_CATEGORIES)
"""Names of the computed columns. `end` is the finish reason, `seconds` the duration of the episode."""


def computed_column(columns: Columns, name: str) -> Column:
    """Return the computed column `name`, one of COMPUTED, of the measured rollouts."""
    if name in _NUMBERS:
        return numbers(getattr(columns, name))
    if name == "success":
        return truths(columns.success)
    if name == "seconds":
        return numbers(columns.stages.get("total", np.full(len(columns), np.nan)))
    return category_values(getattr(columns, name))


def category_values(categories: CategoryColumn) -> Column:
    """Return the strings of a category column, None where a row has none."""
    names = [*categories.names, None]
    return column_of([names[code] for code in categories.codes.tolist()])
