"""Decides whether two formulas have the same value: by exact arithmetic, or by hundreds of digits where it does not
apply.

math-verify evaluates the difference to 15 digits and drops what is smaller, so `2 - 2^{-99}` and `2 - 2^{-100}` are
equal to it. Right pairs differ by nothing; wrong pairs that real problems suggest differ by more than `TOLERANCE`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

DIGITS = 400
TOLERANCE = Fraction(1, 10**340)
"""Relative difference below which two numbers, evaluated to `DIGITS` digits, are equal."""
MAX_BITS = 1_000_000
"""Maximum size of a number in exact arithmetic."""
POINTS = 8
"""Number of points at which formulas with variables are compared."""

Values = Mapping[str, Fraction]


class _NotExact(Exception):
    """Raised for a formula that is not a rational number of acceptable size."""


def same_value(gold: Any, answer: Any) -> bool | None:
    """Return whether both have the same value, or None if that requires algebra.

    The arguments are sympy objects: formulas, tuples, sets, intervals, matrices or equations. Formulas with variables
    are only ever refused, at a point where their values differ.
    """
    from sympy import And, Expr, FiniteSet, Interval, MatrixBase, Tuple, Union  # type: ignore[import-untyped]
    from sympy.core.relational import Relational  # type: ignore[import-untyped]

    if isinstance(gold, Expr) and isinstance(answer, Expr):
        return _same_formula(gold, answer)
    if isinstance(gold, (FiniteSet, Tuple)) and isinstance(answer, (FiniteSet, Tuple)):
        if len(gold.args) != len(answer.args):
            return None
        if isinstance(gold, Tuple) and isinstance(answer, Tuple):
            return _all(same_value(*pair) for pair in zip(gold.args, answer.args, strict=True))
        return _same_elements(gold.args, answer.args)
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        return _only_false(_all((same_value(gold.start, answer.start), same_value(gold.end, answer.end))))
    if isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase):
        if gold.shape != answer.shape:
            return None
        return _all(same_value(*pair) for pair in zip(gold, answer, strict=True))
    if isinstance(gold, (And, Union)) and gold.func == answer.func and len(gold.args) == len(answer.args):
        return _only_false(_same_elements(gold.args, answer.args))
    if isinstance(gold, Relational) and isinstance(answer, Relational):
        wanted, given = (each.reversed if each.rhs.is_Symbol else each for each in (gold, answer))
        if wanted.lhs == given.lhs and wanted.lhs.is_Symbol:
            bounds = wanted.rhs.is_number and given.rhs.is_number
            return same_value(wanted.rhs, given.rhs) if wanted.func == given.func else False if bounds else None
    return None


def same_on_reals(gold: Any, answer: Any, *, positive: bool) -> bool:
    r"""Return whether two formulas agree wherever both are real numbers: `\ln(ab)` and `\ln a + \ln b` do, `\sqrt{x^2}`
    and `x` do not. With `positive`, the variables are positive.
    """
    from sympy import Expr

    if not (isinstance(gold, Expr) and isinstance(answer, Expr)) or not gold.free_symbols:
        return False
    if gold.free_symbols != answer.free_symbols:
        return False
    compared = 0
    for values in _points(gold, answer, positive=positive):
        one, other = _number(gold, values), _number(answer, values)
        if one is None or other is None or not (one.is_real and other.is_real):
            continue
        if not _close(one, other):
            return False
        compared += 1
    return compared >= POINTS // 4


def _all(results: Iterator[bool | None] | Sequence[bool | None]) -> bool | None:
    found = list(results)
    return False if False in found else None if None in found else True


def _only_false(result: bool | None) -> bool | None:
    """Leave it to math-verify to accept what is more than numbers."""
    return False if result is False else None


def _same_elements(golds: Sequence[Any], answers: Sequence[Any]) -> bool | None:
    """Compare in any order: every element of either side needs one that may be equal on the other."""
    table = [[same_value(one, other) for other in answers] for one in golds]
    columns = list(zip(*table, strict=True))
    if any(all(result is False for result in row) for row in (*table, *columns)):
        return False
    return True if all(list(row).count(True) == 1 for row in (*table, *columns)) else None


def _same_formula(gold: Any, answer: Any) -> bool | None:
    if gold == answer:
        return True
    symbols = gold.free_symbols
    if symbols != answer.free_symbols:
        return None
    for values in [{}] if not symbols else list(_points(gold, answer, positive=True))[:2]:
        try:
            same = _rational(gold, values) == _rational(answer, values)
        except (_NotExact, ZeroDivisionError):
            one, other = _number(gold, values), _number(answer, values)
            if one is None or other is None:
                return None
            same = _close(one, other)
        if not same:
            return False
    return None if symbols else True


def _points(gold: Any, answer: Any, *, positive: bool) -> Iterator[Values]:
    """Yield values for the variables. They depend on both formulas, so that no formula can be made to fit them."""
    names = sorted(symbol.name for symbol in gold.free_symbols)
    seed = f"{gold}|{answer}"
    for point in range(POINTS):
        drawn = hashlib.sha256(f"{point}|{seed}".encode()).digest()
        yield {
            name: Fraction(1 + drawn[3 * index % 30] + 256 * drawn[(3 * index + 1) % 30], 1009)
            * (1 if positive or point % 2 == 0 or (point // 2 + index) % 2 else -1)
            for index, name in enumerate(names)
        }


def _rational(formula: Any, values: Values) -> Fraction:
    """Return the exact value. Raises _NotExact if it is irrational or too large."""
    from sympy import Add, Mul, Pow, UnevaluatedExpr, binomial, factorial

    if formula.is_Rational:
        return _bounded(Fraction(int(formula.p), int(formula.q)))
    if formula.is_Symbol:
        return values[formula.name]
    parts = [_rational(part, values) for part in formula.args]
    match formula:
        case Add():
            return sum(map(_bounded, parts), Fraction(0))
        case Mul():
            return math.prod(map(_bounded, parts), start=Fraction(1))
        case Pow():
            return _power(*parts)
        case factorial():
            return Fraction(math.factorial(_small(parts[0])))
        case binomial():
            return Fraction(math.comb(_small(parts[0]), _small(parts[1])))
        case UnevaluatedExpr():
            return parts[0]
    raise _NotExact


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or size * abs(exponent.numerator) > MAX_BITS:
        raise _NotExact
    return base**exponent.numerator


def _bounded(number: Fraction) -> Fraction:
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS:
        raise _NotExact
    return number


def _small(number: Fraction) -> int:
    if number.denominator != 1 or not 0 <= number.numerator <= 20_000:
        raise _NotExact
    return number.numerator


def _number(formula: Any, values: Values) -> Any:
    """Return the value to `DIGITS` digits as a sympy number, or None if it has none."""
    from sympy import Rational

    points = {
        symbol: Rational(values[symbol.name].numerator, values[symbol.name].denominator)
        for symbol in formula.free_symbols
    }
    try:
        number = (formula.subs(points).doit() if points else formula).evalf(DIGITS, maxn=DIGITS)
        parts = number.as_real_imag()
    except (TypeError, ValueError, AttributeError, NotImplementedError):  # no number: a function without a definition
        return None
    return number if all(part.is_Float or part.is_Rational for part in parts) else None


def _close(one: Any, other: Any) -> bool:
    from sympy import Rational

    larger = max(abs(one), abs(other))
    tolerance = Rational(TOLERANCE.numerator, TOLERANCE.denominator)
    return bool(abs(one - other) <= tolerance * larger) or bool(larger <= tolerance)
