"""Columns of values: one value for each rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_EXACT = 2**53
"""Larger integers may lie between two floats."""


class Kind(StrEnum):
    """What a column holds."""

    NUMBERS = "numbers"
    TRUTHS = "truths"
    """1 for true, 0 for false."""
    OBJECTS = "objects"
    """Values of any JSON type, also integers that no float equals."""


@dataclass(frozen=True)
class Column:
    """Values of one field or expression. A missing value is NaN in numbers and truths, and None in objects."""

    kind: Kind
    values: NDArray[Any]
    """An array of float64 for numbers and truths, else of objects."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def numeric(self) -> bool:
        return self.kind is not Kind.OBJECTS

    @property
    def missing(self) -> NDArray[np.bool_]:
        """True where there is no value."""
        if self.numeric:
            return np.asarray(np.isnan(self.values), bool)
        return np.array([value is None for value in self.values], bool)

    def objects(self) -> list[Any]:
        """Return the values as Python objects: None if missing, True or False for truths."""
        if not self.numeric:
            return list(self.values)
        values = [None if value != value else value for value in self.values.tolist()]
        return [None if value is None else value == 1 for value in values] if self.kind is Kind.TRUTHS else values

    def take(self, indexes: NDArray[Any]) -> Column:
        """Return the values at `indexes`, or those that a mask selects."""
        return Column(self.kind, self.values[indexes])


def numbers(values: NDArray[Any]) -> Column:
    """Return a column of numbers, with NaN for missing values."""
    return Column(Kind.NUMBERS, np.asarray(values, np.float64))


def truths(values: NDArray[Any]) -> Column:
    """Return a column of truths from booleans, or from 1, 0 and NaN."""
    return Column(Kind.TRUTHS, np.asarray(values, np.float64))


def column_of(values: Sequence[Any]) -> Column:
    """Return the column of values from JSON. It is numeric if all values that are not None are numbers that floats
    represent exactly, or booleans. NaN is a missing value, whatever the other values are.
    """
    types = {type(value) for value in values} - {type(None)}
    if types and types <= {int, float}:
        try:
            found = np.array([np.nan if value is None else value for value in values], np.float64)
        except OverflowError:  # an integer beyond the range of a float
            found = None
        if found is not None and not (int in types and _any_rounded(values, found)):
            return numbers(found)
    if types == {bool}:
        return truths(np.array([np.nan if value is None else value for value in values], np.float64))
    objects = np.empty(len(values), object)
    for index, value in enumerate(values):  # assigned one by one, because numpy would unpack lists
        objects[index] = None if value != value else value  # NaN, as in a column of numbers
    return Column(Kind.OBJECTS, objects)


def _any_rounded(values: Sequence[Any], floats: NDArray[np.float64]) -> bool:
    """Return whether an integer differs from its float."""
    large = np.flatnonzero(np.abs(floats) >= LARGEST_EXACT).tolist()
    return any(values[index] != floats[index].item() for index in large)
