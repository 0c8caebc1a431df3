"""Computes the value of an expression for every rollout at once.

A missing value is `null`. It equals only `null`, is neither smaller nor larger than anything, and makes arithmetic
missing. Values of different types are never equal and have no order, except that `true` is 1 and `false` is 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.records.expression_parser import (
    Arithmetic,
    ArithmeticOperator,
    ComparisonNode,
    ComparisonOperator,
    Constant,
    Field,
    FieldPath,
    FunctionCall,
    Items,
    Logical,
    Node,
    Not,
    Value,
)

LARGEST_EXACT = 2**53
"""Larger integers may lie between two floats."""


class Kind(StrEnum):
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
    large = np.flatnonzero(np.abs(floats) >= LARGEST_EXACT).tolist()
    return any(values[index] != floats[index].item() for index in large)


Mask = NDArray[np.bool_]

_ORDERS: dict[ComparisonOperator, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: dict[ArithmeticOperator, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.mod,
}


def selected(node: Node, columns: Mapping[FieldPath, Column], count: int) -> Mask:
    """Return for each of `count` rollouts whether the expression holds. `columns`: the fields that it reads."""
    return _Evaluation(columns, count).mask(node)


def evaluate(node: Node, columns: Mapping[FieldPath, Column], count: int) -> Column:
    """Return the value of the expression for each of `count` rollouts. `columns`: the fields that it reads."""
    return _Evaluation(columns, count).column(node)


class _Evaluation:
    def __init__(self, columns: Mapping[FieldPath, Column], count: int) -> None:
        self._columns = columns
        self._count = count

    def mask(self, node: Node) -> Mask:
        """Return where the node holds: it is true, or a number that is not 0, or a text or list that is not empty."""
        match node:
            case Logical("and", operands):
                return _joined(np.logical_and, [self.mask(operand) for operand in operands])
            case Logical("or", operands):
                return _joined(np.logical_or, [self.mask(operand) for operand in operands])
            case Not(operand):
                return ~self.mask(operand)
            case ComparisonNode(("in" | "not in") as name, left, right):
                among = self._is_in(left, right)
                return ~among if name == "not in" else among
            case ComparisonNode(("==" | "!=") as name, left, right):
                equal = _equal(self.column(left), self.column(right))
                return ~equal if name == "!=" else equal
            case ComparisonNode(name, left, right):
                return _ordered(name, self.column(left), self.column(right))
        found = self.column(node)
        if found.numeric:
            return np.asarray(~found.missing & (found.values != 0), bool)
        return np.array([bool(value) for value in found.values], bool)

    def column(self, node: Node) -> Column:
        match node:
            case Constant(value):
                return self._repeated(value)
            case Field(path):
                return self._columns[path]
            case Arithmetic(name, left, right):
                return self._arithmetic(name, self.column(left), self.column(right))
            case FunctionCall("len", (argument,)):
                return numbers(self._mapped(argument, _length))
            case FunctionCall("abs", (argument,)):
                return numbers(np.abs(_as_numbers(self.column(argument))))
            case FunctionCall("lower", (argument,)):
                return column_of([_lower(value) for value in self.column(argument).objects()])
            case FunctionCall(("startswith" | "endswith") as name, (text, part)):
                pairs = zip(self.column(text).objects(), self.column(part).objects(), strict=True)
                return truths(np.array([_affix(name, whole, affix) for whole, affix in pairs], bool))
            case Items(values):
                return column_of([list(values)] * self._count)
        return truths(self.mask(node))

    def _repeated(self, value: Value) -> Column:
        if isinstance(value, bool):
            return truths(np.full(self._count, float(value)))
        if isinstance(value, int | float):
            return self._number(value)
        return self._objects(value)

    def _number(self, value: int | float) -> Column:
        try:
            found = float(value)
        except OverflowError:
            return self._objects(value)
        # A comparison with a large integer is exact between objects.
        return numbers(np.full(self._count, found)) if found == value else self._objects(value)

    def _objects(self, value: Value) -> Column:
        objects = np.empty(self._count, object)
        objects[:] = value
        return Column(Kind.OBJECTS, objects)

    def _mapped(self, node: Node, function: Callable[[Any], float]) -> NDArray[np.float64]:
        return np.fromiter(map(function, self.column(node).objects()), np.float64, self._count)

    def _is_in(self, left: Node, right: Node) -> Mask:
        if isinstance(right, Items):
            found = self.column(left)
            columns = [self._repeated(value) for value in right.values]
            return _joined(np.logical_or, [np.zeros(self._count, bool), *(_equal(found, each) for each in columns)])
        pairs = zip(self.column(left).objects(), self.column(right).objects(), strict=True)
        return np.array([_contains(whole, part) for part, whole in pairs], bool)

    def _arithmetic(self, name: ArithmeticOperator, left: Column, right: Column) -> Column:
        with np.errstate(all="ignore"):
            found = _ARITHMETIC[name](_as_numbers(left), _as_numbers(right))
        return numbers(np.where(np.isfinite(found), found, np.nan))


def _joined(function: np.ufunc, masks: Sequence[Mask]) -> Mask:
    return np.asarray(function.reduce(masks), bool)


def _equal(left: Column, right: Column) -> Mask:
    if left.numeric and right.numeric:
        return np.asarray(left.values == right.values, bool) | (left.missing & right.missing)
    pairs = zip(left.objects(), right.objects(), strict=True)
    return np.array([_same(*pair) for pair in pairs], bool)


def _same(left: Any, right: Any) -> bool:
    return bool(left == right)


def _ordered(name: ComparisonOperator, left: Column, right: Column) -> Mask:
    compare = _ORDERS[name]
    if left.numeric and right.numeric:
        return np.asarray(compare(left.values, right.values), bool)  # comparisons with NaN are false
    pairs = zip(left.objects(), right.objects(), strict=True)
    return np.array([_comparable(*pair) and compare(*pair) for pair in pairs], bool)


def _comparable(left: Any, right: Any) -> bool:
    return (isinstance(left, str) and isinstance(right, str)) or (
        isinstance(left, int | float) and isinstance(right, int | float)
    )


def _as_numbers(column: Column) -> NDArray[np.float64]:
    if column.numeric:
        return column.values
    return np.array([_number(value) for value in column.values], np.float64)


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else np.nan
    except OverflowError:
        return np.nan


def _length(value: Any) -> float:
    return float(len(value)) if isinstance(value, str | list | dict) else np.nan


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else None


def _affix(name: str, whole: Any, part: Any) -> bool:
    if not isinstance(whole, str) or not isinstance(part, str):
        return False
    return whole.startswith(part) if name == "startswith" else whole.endswith(part)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, dict):
        return isinstance(part, str) and part in whole
    return isinstance(whole, list) and part in whole
