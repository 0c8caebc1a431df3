"""Computes the numbers that answers stand for, such as `\\frac{14}{3}`, and finds `\\boxed{}` answers in a text."""

from __future__ import annotations

import ast
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Iterator

_MAX_LENGTH = 100
_MAX_NESTING = 12
_MAX_POWER = 64.0
_MAX_BOXES = 50
_BOX = re.compile(r"\\f?box(?:ed)?\s?\{")
_NUMBER_WITH_COMMAS = re.compile(r"(?<![\d,])(\d{1,3}(?:,\d{3})+)(?![\d,])")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_ROOT = re.compile(r"\\sqrt\s*(?:\{([^{}]*)\}|(\d))")
_WRAPPER = re.compile(r"\\(?:boxed|mathrm|mathbf|text|left|right|displaystyle)\b|\\[!,;:() ]|[$\s]")
_MIXED = re.compile(r"\d\s*\\[dt]?frac|\d\s+\d|\\[dt]?frac\s*\d\s*\d\s*\d")
"""Forms with several readings: `1\\frac{1}{2}`, `1 1/2`, `\\frac919`."""
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_MAY_BE_NUMBER = re.compile(r"\d|\\pi")
_ALLOWED = re.compile(r"[\d.+\-*/()]|sqrt|pi")
_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def number_of(text: str) -> float | None:
    """Return the number that an answer stands for; None if it is not certainly a single number.

    Mixed numbers, units, variables, bases and lists are not computed.
    """
    if not text or len(text) > _MAX_LENGTH:
        return None
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(each, each)) for each in text)
    if _PLAIN.fullmatch(text):
        return float(text)
    if not _MAY_BE_NUMBER.search(text) or _MIXED.search(text):
        return None
    plain = _NUMBER_WITH_COMMAS.sub(lambda found: found[1].replace(",", ""), text)
    plain = re.sub(r"\^\{?\\circ\}?|\\?%$", "", _WRAPPER.sub("", plain).rstrip("."))
    for _ in range(_MAX_NESTING):
        before = plain
        plain = _FRACTION.sub(lambda m: f"(({m[1] or m[2]})/({m[3] or m[4]}))", plain)
        plain = _ROOT.sub(lambda m: f"sqrt({m[1] or m[2]})", plain)
        if plain == before:
            break
    plain = re.sub(r"\\cdot|\\times", "*", plain).replace("\\pi", "pi").replace("{", "(").replace("}", ")")
    plain = re.sub(r"\^", "**", plain)
    if _ALLOWED.sub("", plain):
        return None
    plain = re.sub(r"(?<=[\d)])(?=sqrt|pi|\()|(?<=\))(?=\d)|(?<=pi)(?=[\d(s])", "*", plain)
    try:
        value = _computed(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    return value if math.isfinite(value) else None


def boxed(text: str) -> Iterator[str]:
    """Yield the contents of each `\\boxed{}`, without spaces."""
    at, found = _BOX.search(text), 0
    while at and found < _MAX_BOXES:
        start = at.end()
        depth, end = 1, start
        while end < len(text) and depth and end - start < 2000:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield "".join(text[start : end - 1].split())
        at, found = _BOX.search(text, end), found + 1


def _computed(node: ast.AST) -> float:
    """Compute an arithmetic expression. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.Name) and node.id == "pi":
        return math.pi
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _computed(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _computed(node.left), _computed(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) <= _MAX_POWER and left >= 0:
            return math.pow(left, right)
        if (compute := _OPERATORS.get(type(node.op))) is not None:
            return compute(left, right)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "sqrt"
        and len(node.args) == 1
    ):
        return math.sqrt(_computed(node.args[0]))
    raise ValueError("not arithmetic")
