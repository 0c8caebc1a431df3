"""Parses expressions. They are written like conditions in Python, also with JSON's `true`, `false` and `null`.

Python's own parser reads the text, and every kind of node that has no meaning here is refused. Nothing is executed.
"""

from __future__ import annotations

import ast
import difflib
import json
import keyword
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args


@dataclass(frozen=True)
class FieldPath:
    """The keys and list indexes that lead from a row to a value."""

    parts: tuple[str | int, ...]
    raw: bool = False
    """Whether the path begins with `row`, and therefore never names a column that is computed from the row."""

    def __str__(self) -> str:
        first, *rest = self.parts
        named = not self.raw and isinstance(first, str) and _is_name(first)
        text = str(first) if named else f"row{_step(first)}"
        return text + "".join(map(_step, rest))

    @property
    def column(self) -> str | None:
        """The name of the computed column that the path may refer to; None if it can only refer to the row."""
        name = self.parts[0]
        return name if len(self.parts) == 1 and not self.raw and isinstance(name, str) else None

    def value(self, row: Any) -> Any:
        """Return the value in `row`; None if there is none."""
        found = row
        for part in self.parts:
            if isinstance(part, str):
                found = found.get(part) if isinstance(found, dict) else None
            else:
                found = found[part] if isinstance(found, list) and -len(found) <= part < len(found) else None
            if found is None:
                return None
        return found


def _is_name(text: str) -> bool:
    if not text.isidentifier() or keyword.iskeyword(text) or text in ("row", "true", "false", "null"):
        return False
    return unicodedata.normalize("NFKC", text) == text  # a parser reads names in this form


def _step(part: str | int) -> str:
    if isinstance(part, str) and _is_name(part):
        return f".{part}"
    return f"[{part}]" if isinstance(part, int) else f"[{quoted(part)}]"


def quoted(text: str) -> str:
    """Return the text as a string of an expression, with quotes, control characters and lone surrogates escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


Value = None | bool | int | float | str
ArithmeticOperator = Literal["+", "-", "*", "/", "%"]
ComparisonOperator = Literal["<", "<=", ">", ">=", "==", "!=", "in", "not in"]
FunctionName = Literal["abs", "len", "lower", "startswith", "endswith"]


@dataclass(frozen=True)
class Constant:
    value: Value


@dataclass(frozen=True)
class Items:
    """A list of constants, as in `finish_reason in ["length", "max_steps"]`."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Field:
    path: FieldPath


@dataclass(frozen=True)
class Not:
    operand: Node


@dataclass(frozen=True)
class Logical:
    operator: Literal["and", "or"]
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class ComparisonNode:
    operator: ComparisonOperator
    left: Node
    right: Node


@dataclass(frozen=True)
class Arithmetic:
    operator: ArithmeticOperator
    left: Node
    right: Node


@dataclass(frozen=True)
class FunctionCall:
    function: FunctionName
    arguments: tuple[Node, ...]


Node = Constant | Items | Field | Not | Logical | ComparisonNode | Arithmetic | FunctionCall


def fields_of(node: Node) -> Iterator[FieldPath]:
    """Yield the fields that an expression reads. A field that occurs twice is yielded twice."""
    match node:
        case Field(path):
            yield path
        case Not(operand):
            yield from fields_of(operand)
        case Logical(_, parts) | FunctionCall(_, parts):
            for part in parts:
                yield from fields_of(part)
        case ComparisonNode(_, left, right) | Arithmetic(_, left, right):
            yield from fields_of(left)
            yield from fields_of(right)


MAX_LENGTH = 2000
MAX_DEPTH = 100
"""Maximum nesting, far below what the evaluation of a nested expression can bear. `and`, `or` and lists do not nest,
however long they are, but each operation of a chain such as `a + b + c` does."""
_TOO_DEEP = "the expression is nested too deeply"
_ROW = "row"
_ASSIGNMENT = re.compile(r"(?<![=!<>])=(?!=)")
_NAMED: dict[str, Value] = {"true": True, "false": False, "null": None}
_ARITHMETIC: dict[type[ast.operator], ArithmeticOperator] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
}
_COMPARISONS: dict[type[ast.cmpop], ComparisonOperator] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_ARGUMENTS: dict[FunctionName, int] = {"abs": 1, "len": 1, "lower": 1, "startswith": 2, "endswith": 2}


class ExpressionError(ValueError):
    """The text is not an expression. The message states where, and what was expected."""


def parse(text: str) -> Node:
    """Parse an expression such as `reward < 0.5 and (tool_calls > 3 or finish_reason == "length")`.

    Raises ExpressionError.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"the expression has {len(text):,} characters; at most {MAX_LENGTH:,} are allowed")
    if not text.strip():
        raise ExpressionError("the expression is empty; an example: reward < 0.5 and tool_calls > 3")
    try:
        return _Parser(text.strip()).node(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ExpressionError(_why_invalid(text.strip(), error)) from error
    except (RecursionError, MemoryError) as error:
        raise ExpressionError(_TOO_DEEP) from error
    except ExpressionError:
        raise
    except ValueError as error:  # such as a null byte, or an integer of 5,000 digits
        raise ExpressionError(f"the expression cannot be read: {error}") from error


def parse_field(text: str) -> FieldPath:
    """Parse the name of one field, such as `response.usage.output_tokens`. Raises ExpressionError."""
    node = parse(text)
    if not isinstance(node, Field):
        raise ExpressionError(
            f"{text!r} is not a field; expected a name such as reward or response.usage.output_tokens"
        )
    return node.path


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0

    def node(self, found: ast.expr) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"{_TOO_DEEP}; at most {MAX_DEPTH} levels are allowed")
        node = self._node(found)
        self._depth -= 1
        return node

    def _node(self, found: ast.expr) -> Node:
        match found:
            case ast.BoolOp(op=operator, values=values):
                return Logical("and" if isinstance(operator, ast.And) else "or", tuple(map(self.node, values)))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Not(self.node(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._negative(self.node(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.node(operand)
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _ARITHMETIC:
                return Arithmetic(_ARITHMETIC[type(operation)], self.node(left), self.node(right))
            case ast.Compare(left=left, ops=operators, comparators=operands):
                return self._comparison(found, operators, [left, *operands])
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(found, name, arguments)
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return Items(tuple(self._constant(element) for element in elements))
            case ast.Name(id=name) if name in _NAMED:
                return Constant(_NAMED[name])
            case ast.Name(id=name) if name == _ROW:
                raise self._refusal(found, '`row` alone has no value; write row.reward or row["my key"]')
            case ast.Name() | ast.Attribute() | ast.Subscript():
                parts = self._parts(found)
                return Field(FieldPath(parts[1:], raw=True) if parts[0] == _ROW else FieldPath(parts))
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return Constant(value)
        raise self._refusal(found, "expected a comparison, and, or, not, arithmetic, a field, a number or a string")

    def _negative(self, operand: Node) -> Node:
        match operand:
            case Constant(value=int() | float() as value) if not isinstance(value, bool):
                return Constant(-value)
        return Arithmetic("-", Constant(0), operand)

    def _comparison(self, found: ast.expr, operators: Sequence[ast.cmpop], operands: Sequence[ast.expr]) -> Node:
        """Return one comparison, or several that are joined by `and` for `0 < reward < 1`."""
        nodes = [self.node(operand) for operand in operands]
        comparisons = []
        for operator, left, right in zip(operators, nodes[:-1], nodes[1:], strict=True):
            if type(operator) not in _COMPARISONS:
                raise self._refusal(found, "`is` is not known; use == or !=")
            comparisons.append(ComparisonNode(_COMPARISONS[type(operator)], left, right))
        return comparisons[0] if len(comparisons) == 1 else Logical("and", tuple(comparisons))

    def _call(self, found: ast.expr, name: str, arguments: Sequence[ast.expr]) -> Node:
        known = get_args(FunctionName)
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else f"; the functions are {', '.join(known)}"
            raise self._refusal(found, f"the function {name} is not known{hint}")
        function = cast(FunctionName, name)
        expected = _ARGUMENTS[function]
        if len(arguments) != expected:
            raise self._refusal(found, f"{name} has {len(arguments)} arguments; expected {expected}")
        return FunctionCall(function, tuple(map(self.node, arguments)))

    def _parts(self, found: ast.expr) -> tuple[str | int, ...]:
        match found:
            case ast.Name(id=name):
                return (name,)
            case ast.Attribute(value=owner, attr=name):
                return (*self._parts(owner), name)
            case ast.Subscript(value=owner, slice=key):
                constant = self._constant(key)
                if isinstance(constant, str) or type(constant) is int:
                    return (*self._parts(owner), constant)
                raise self._refusal(key, "expected a string or a whole number in brackets")
        raise self._refusal(found, 'expected a field, such as response.usage.output_tokens or row["my key"]')

    def _constant(self, found: ast.expr) -> Value:
        node = self.node(found)
        if not isinstance(node, Constant):
            raise self._refusal(found, "expected a number or a string")
        return node.value

    def _refusal(self, found: ast.expr, problem: str) -> ExpressionError:
        part = ast.get_source_segment(self._text, found) or self._text
        return ExpressionError(f"{_short(part)}: {problem}")


def _why_invalid(text: str, error: SyntaxError) -> str:
    if _ASSIGNMENT.search(text):
        return f"{_short(text)}: found =; compare with =="
    rest = text[error.offset - 1 :] if error.offset else ""
    where = f"at {_short(rest)}" if rest else "at the end"
    hint = "; join conditions with and, or, not" if "&&" in text or "||" in text else ""
    return f"{_short(text)}: cannot be read {where}{hint}"


def _short(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
