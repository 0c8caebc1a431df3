"""Estimates the cost of a formula from its text, before any algebra: `9^{9^{9}}` has 370 million digits.

The estimates are upper bounds. A formula within the limits may still be slow to compare; the CPU time limit handles
those cases.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from rollyard.resources_servers.answers.latex import normalized

MAX_DIGITS = 10_000
MAX_TERMS = 2_000
"""Maximum number of terms in an expanded product or power."""
MAX_DEGREE = 300
MAX_RANGE = 1_000
"""Maximum number of terms in a sum or product over a range."""
MAX_ROOTS = 8
MAX_DEPTH = 30
"""Maximum nesting depth of brackets, fractions, roots and exponents."""
MAX_CELLS = 64
"""Maximum number of matrix cells."""
_TOKEN = re.compile(
    r"\\(?:begin|end)\s*\{[^{}]*\}|\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|\\.|\d(?:,?\d)*\.?\d*|\.\d+|\S", re.DOTALL
)
_OPENING = {"{": "}", "(": ")", "[": "]", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_ENDING = frozenset(_OPENING.values())
_RANGE = re.compile(r"\\(?:sum|prod)\s*_\s*\{[^{}=]*=([^{}]*)\}\s*\^\s*(?:\{([^{}]*)\}|(\S))")
_PLAIN = re.compile(r"-?\d{1,4}|[a-zA-Z]|\\infty|-\s*\\infty")
_FACTORIAL_OF_FACTORIAL = re.compile(r"!\s*\)*\s*!")
_FUNCTION = re.compile(r"\\(?:a?r?c?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp)(?![a-z])")
_DERIVED = re.compile(r"\\i*int(?![a-z])|\\frac\s*\{\s*d\b|\\lim(?![a-z])")


@dataclass(frozen=True)
class _Size:
    digits: float = 1.0
    """Digits of the exact value, numerator and denominator together."""
    value: float = 1.0
    """The absolute value, if the formula is a number."""
    terms: float = 1.0
    degree: float = 0.0
    symbolic: bool = False

    def __mul__(self, other: _Size) -> _Size:
        return _Size(
            self.digits + other.digits,
            _product(self.value, other.value),
            self.terms * other.terms,
            self.degree + other.degree,
            self.symbolic or other.symbolic,
        )

    def __add__(self, other: _Size) -> _Size:
        return _Size(
            self.digits + other.digits,
            self.value + other.value,
            self.terms + other.terms,
            max(self.degree, other.degree),
            self.symbolic or other.symbolic,
        )

    def __pow__(self, power: _Size) -> _Size:
        if power.symbolic:
            return _Size(self.digits + power.digits, math.inf, 1.0, max(self.degree, power.degree), True)
        times = max(power.value, 1.0)
        terms = self.terms
        if terms > 1:
            terms = math.inf if times * terms > 1e5 else float(math.comb(int(times + terms), int(terms) - 1))
        return _Size(
            self.digits * times + power.digits, _power(self.value, times), terms, self.degree * times, self.symbolic
        )


def why_too_costly(gold: str, answer: str) -> str | None:
    """Return why `answer` is too expensive to compare, or None if it is not. A large gold answer raises the limits."""
    wanted, given = _sizes(normalized(gold)), _sizes(normalized(answer))
    for name, size in given.items():
        limit = max(_LIMITS[name], 2 * wanted[name])
        if not size <= limit:
            shown = f"{size:,.0f}" if size < 1e12 else "too many"
            return f"the answer has {shown} {name}; the limit is {limit:,.0f}"
    return None


_LIMITS = {
    "digits": MAX_DIGITS,
    "terms": MAX_TERMS,
    "degrees": MAX_DEGREE,
    "roots": MAX_ROOTS,
    "cells of matrices": MAX_CELLS,
    "steps of a sum or product": MAX_RANGE,
    "factorials of factorials": 0,
    "integrals, derivatives and limits": 1,
    "symbols": 300,
    "digits in a row": 1_000,
    "functions": 6,
    "indices": 12,
    "sets": 6,
}


def _sizes(text: str) -> dict[str, float]:
    size = _Reader(text).formula()
    return {
        "digits": size.digits,
        "terms": size.terms,
        "degrees": size.degree,
        "roots": float(len(re.findall(r"\\sqrt", text))),
        "cells of matrices": float(text.count("&") + text.count(r"\\") + 1 if "matrix" in text else 0),
        "steps of a sum or product": max(map(_steps, _RANGE.finditer(text)), default=0.0),
        "factorials of factorials": float(len(_FACTORIAL_OF_FACTORIAL.findall(text))),
        "integrals, derivatives and limits": float(len(_DERIVED.findall(text))),
        "symbols": float(len(_TOKEN.findall(text))),
        "digits in a row": float(max(map(len, re.findall(r"\d+", text)), default=0)),
        "functions": float(len(_FUNCTION.findall(text))),
        "indices": float(text.count("_")),
        "sets": float(text.count(r"\{")),
    }


def _steps(match: re.Match[str]) -> float:
    bounds = [match[1].strip(), (match[2] or match[3]).strip()]
    if not all(_PLAIN.fullmatch(bound) for bound in bounds):
        return math.inf
    numbers = [int(bound) for bound in bounds if bound.lstrip("-").isdecimal()]
    return float(max(numbers) - min(numbers)) if len(numbers) == 2 else 1.0


def _product(one: float, other: float) -> float:
    return 0.0 if 0.0 in (one, other) else one * other


def _power(base: float, times: float) -> float:
    try:
        return float(max(base, 1.0) ** times)
    except OverflowError:
        return math.inf


_INFINITE = _Size(math.inf, math.inf, math.inf, math.inf)


class _Reader:
    """Recursive-descent parser that combines the sizes of a formula's parts."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._position = self._depth = 0

    def formula(self, ending: str = "") -> _Size:
        total, product = _Size(0.0, 0.0, 0.0), _Size(0.0)
        started = False
        while self._position < len(self._tokens):
            token = self._tokens[self._position]
            if token in _ENDING:
                self._position += 1
                if token == ending or ending:
                    break
                continue
            if token in ("+", "-", ",", "=", "<", ">", "&", ";", r"\\", r"\pm", r"\mp") or token in _RELATIONS:
                self._position += 1
                if started:
                    total, product, started = total + product, _Size(0.0), False
                continue
            product, started = product * self._powered(), True
        return total + product if started or total.terms == 0 else total

    def _powered(self) -> _Size:
        size = self._operand()
        while self._position < len(self._tokens) and self._tokens[self._position] in ("^", "!", "_"):
            sign = self._tokens[self._position]
            self._position += 1
            if sign == "!":
                size = _factorial(size)
            elif sign == "_":
                self._exponent()
            else:
                size = size ** self._exponent()
        return size

    def _exponent(self) -> _Size:
        """Parse an exponent, which may contain further exponents: `9^9^9` means `9^{9^9}`."""
        size = self._operand()
        if self._position < len(self._tokens) and self._tokens[self._position] == "^":
            self._position += 1
            self._depth += 1
            size = size ** (_INFINITE if self._depth > MAX_DEPTH else self._exponent())
            self._depth -= 1
            return size
        if self._position < len(self._tokens) and self._tokens[self._position] == "!":
            self._position += 1
            return _factorial(size)
        return size

    def _operand(self) -> _Size:
        """Parse one number, letter, command or group. Its size is infinite beyond MAX_DEPTH levels of nesting."""
        if self._depth > MAX_DEPTH:
            self._position = len(self._tokens)
            return _INFINITE
        self._depth += 1
        try:
            return self._read()
        finally:
            self._depth -= 1

    def _read(self) -> _Size:
        if self._position >= len(self._tokens):
            return _Size(0.0)
        token = self._tokens[self._position]
        self._position += 1
        if token in _OPENING:
            return self.formula(_OPENING[token])
        if re.match(r"\.?\d", token):
            plain = token.replace(",", "")
            return _Size(float(len(plain)), float(plain) if len(plain) < 300 else math.inf)
        if token in (r"\frac", r"\binom", r"\dbinom", r"\tbinom"):
            above, below = self._operand(), self._operand()
            if token != r"\frac":
                return _Size(above.value * 0.302 + 1, _power(2.0, above.value))
            both = above * below
            return _Size(
                both.digits, _product(above.value, _power(10.0, below.digits)), both.terms, both.degree, both.symbolic
            )
        if token in ("-", "+"):
            return self._operand()
        if token == "e" or token in ("i", r"\pi"):
            return _Size(1.0, 4.0)
        if len(token) == 1 and token.isalpha():
            return _Size(1.0, 1.0, 1.0, 1.0, True)
        return _Size(0.0)


_RELATIONS = frozenset((r"\le", r"\ge", r"\ne", r"\in", r"\approx", r"\cup", r"\cap", r"\equiv"))


def _factorial(size: _Size) -> _Size:
    if size.symbolic:
        return size
    if size.value > 1e6:
        return _Size(math.inf, math.inf)
    digits = math.lgamma(size.value + 1) / math.log(10) + 1
    return _Size(digits, _power(10.0, digits))
