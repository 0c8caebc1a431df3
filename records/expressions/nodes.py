"""The parts of a parsed expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rollyard.records.expressions.field_path import FieldPath

Value = None | bool | int | float | str
ArithmeticOperator = Literal["+", "-", "*", "/", "%"]
ComparisonOperator = Literal["<", "<=", ">", ">=", "==", "!=", "in", "not in"]
FunctionName = Literal["abs", "len", "lower", "startswith", "endswith"]


@dataclass(frozen=True)
class Constant:
    """A number, a string, `true`, `false` or `null`."""

    value: Value


@dataclass(frozen=True)
class Items:
    """A list of constants, as in `finish_reason in ["length", "max_steps"]`."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Field:
    """A value of the row."""

    path: FieldPath


@dataclass(frozen=True)
class Not:
    operand: Node


@dataclass(frozen=True)
class Logical:
    """Operands that are joined by `and` or `or`."""

    operator: Literal["and", "or"]
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Comparison:
    operator: ComparisonOperator
    left: Node
    right: Node


@dataclass(frozen=True)
class Arithmetic:
    operator: ArithmeticOperator
    left: Node
    right: Node


@dataclass(frozen=True)
class Call:
    """A call of one of the functions."""

    function: FunctionName
    arguments: tuple[Node, ...]


Node = Constant | Items | Field | Not | Logical | Comparison | Arithmetic | Call


def fields_of(node: Node) -> Iterator[FieldPath]:
    """Yield the fields that an expression reads. A field that occurs twice is yielded twice."""
    match node:
        case Field(path):
            yield path
        case Not(operand):
            yield from fields_of(operand)
        case Logical(_, parts) | Call(_, parts):
            for part in parts:
                yield from fields_of(part)
        case Comparison(_, left, right) | Arithmetic(_, left, right):
            yield from fields_of(left)
            yield from fields_of(right)
