from __future__ import annotations

import ast
import copy
import difflib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

_OPPOSITES: list[tuple[type[ast.cmpop], type[ast.cmpop]]] = [
    *((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot))
]
_NEGATED = {**dict(_OPPOSITES), **{other: one for one, other in _OPPOSITES}}
_MOVED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}

_LARGE = 10
"""From here on numbers are limits and seconds, and one more rarely matters. Zero does."""


@dataclass(frozen=True)
class Mutation:
    """The text between two positions of a file, and what replaces it."""

    line: int
    column: int  # in bytes of UTF-8, as in `ast`
    end_line: int
    end_column: int
    old: str
    new: str

    def apply(self, source: str) -> str:
        """Return `source` with the change, which must be valid Python."""
        lines = source.encode().splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        end = sum(map(len, lines[: self.end_line - 1])) + self.end_column
        whole = b"".join(lines)
        changed = (whole[:start] + self.new.encode() + whole[end:]).decode()
        ast.parse(changed)
        return changed

    def moved(self, lines: int) -> Mutation:
        return replace(self, line=self.line + lines, end_line=self.end_line + lines)

    def __str__(self) -> str:
        return f"{_short(self.old)} -> {_short(self.new)}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:28]} ... {text[-27:]}"


def mutations(source: str) -> list[Mutation]:
    """Return every change that can be made, except to what rarely changes what the code does.

    That is annotations, docstrings, sentences, and decorators such as `@dataclass(slots=True)`.
    """
    nodes = list(_mutable_nodes(ast.parse(source)))
    conditions = {id(test) for node in nodes for test in _conditions(node)}
    found = []
    for node in nodes:
        if isinstance(node, ast.stmt):
            texts = list(_statements(node))
        elif isinstance(node, ast.expr):
            negated = [ast.UnaryOp(ast.Not(), node)] if id(node) in conditions else []
            texts = [f"({ast.unparse(new)})" for new in [*_expressions(node), *negated]]
        else:
            continue
        assert node.end_lineno is not None and node.end_col_offset is not None
        span = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        found += [Mutation(*span, old=ast.unparse(node), new=text) for text in texts]
    return found


def _conditions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            tests = [test]
        case ast.comprehension(ifs=tests):
            pass
        case _:
            tests = []
    return [test for test in tests if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr)]


def _mutable_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through what may change. Python 3.11 reports no positions inside f-strings."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _skipped(child):
                yield from _mutable_nodes(child)


def _skipped(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Subscript(value=ast.Name(id="Literal")) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
    return False


def _statements(node: ast.stmt) -> Iterator[str]:
    """Statements whose absence leaves valid names behind are removed; values are no longer returned."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.Return(value=ast.Constant(value=bool() | None)):
            pass  # a boolean is negated, and None is hardly different from False
        case ast.Return(value=ast.expr()):
            yield "return None"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[operator]):
            for table in (_NEGATED, _MOVED):
                if type(operator) in table:
                    yield _with(node, ops=[table[type(operator)]()])
        case ast.BoolOp(op=operator):
            yield _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
            yield _with(node, op=_ARITHMETIC[type(operator)]())
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                if keyword.arg:
                    yield _with(node, keywords=[other for other in keywords if other is not keyword])
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1 if value < _LARGE else 0)
        case ast.Constant(value=str() as value) if value and not any(map(str.isspace, value)):
            yield ast.Constant(value + "x")
        case ast.IfExp():
            yield _with(node, body=node.orelse, orelse=node.body)


def _with(node: ast.expr, **fields: object) -> ast.expr:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def same_lines(before: str, after: str) -> dict[int, int]:
    """Return the lines that both texts have: number in `before` -> number in `after`."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return {block.a + i: block.b + i for block in matcher.get_matching_blocks() for i in range(1, block.size + 1)}


def draw(before: Mapping[str, str], after: Mapping[str, str], count: int, seed: str) -> list[tuple[str, Mutation]]:
    """Return `count` lines of the files in `before`, given as path -> source, each with one change.

    Lines that `after` lacks are passed over; a small change of the product leaves most of the draw as it was.
    """
    lines: dict[tuple[str, int], list[Mutation]] = defaultdict(list)
    for path in sorted(before.keys() & after.keys()):
        for mutation in mutations(before[path]):
            lines[path, mutation.line].append(mutation)
    order = sorted(lines)
    random.Random(seed).shuffle(order)
    same = {path: same_lines(before[path], after[path]) for path in before.keys() & after.keys()}
    drawn: list[tuple[str, Mutation]] = []
    for path, line in order:
        mutation = random.Random(f"{seed} {path} {line}").choice(lines[path, line])
        moved = {same[path].get(n, 0) - n for n in range(line, mutation.end_line + 1)}
        if len(drawn) < count and len(moved) == 1 and moved != {-line}:
            drawn.append((path, mutation))
    return drawn
