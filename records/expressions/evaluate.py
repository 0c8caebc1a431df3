"""Computes the value of an expression for every rollout at once.

A missing value is `null`. It equals only `null`, is neither smaller nor larger than anything, and makes arithmetic
missing. Values of different types are never equal and have no order, except that `true` is 1 and `false` is 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.records.expressions.column import Column, Kind, column_of, numbers, truths
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.expressions.nodes import (
    Arithmetic,
    ArithmeticOperator,
    Call,
    Comparison,
    ComparisonOperator,
    Constant,
    Field,
    Items,
    Logical,
    Node,
    Not,
    Value,
)

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
            case Comparison(("in" | "not in") as name, left, right):
                among = self._is_in(left, right)
                return ~among if name == "not in" else among
            case Comparison(("==" | "!=") as name, left, right):
                equal = _equal(self.column(left), self.column(right))
                return ~equal if name == "!=" else equal
            case Comparison(name, left, right):
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
            case Call("len", (argument,)):
                return numbers(self._mapped(argument, _length))
            case Call("abs", (argument,)):
                return numbers(np.abs(_as_numbers(self.column(argument))))
            case Call("lower", (argument,)):
                return column_of([_lower(value) for value in self.column(argument).objects()])
            case Call(("startswith" | "endswith") as name, (text, part)):
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
