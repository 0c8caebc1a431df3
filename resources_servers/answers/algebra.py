"""Compares an answer with the gold answer using math-verify, which may never finish: run it in a worker process."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rollyard.resources_servers.answers.claims import Refused, claim
from rollyard.resources_servers.answers.equality import DECIMALS, Comparison, compared, is_near
from rollyard.resources_servers.answers.latex import brackets, normalized
from rollyard.resources_servers.answers.problem_statement import read_problem
from rollyard.resources_servers.answers.quantity import quantity
from rollyard.resources_servers.answers.vocabulary import is_unit

TINY = 1e-9
"""Numbers smaller than this in absolute value are compared by relative difference, with this value as the tolerance."""
_SLASHED = re.compile(r"(?<![\w.}^_/])(\d+)/(\d+)(?=\s*(?:\\(?!frac|times|cdot)|[a-zA-Z]))")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_APPLIED_PI = re.compile(r"\\pi\s*\(")
r"""Matches the start of `\pi(...)`, which is a product, not a function call."""
_TIMES_GROUP = re.compile(r"(?<=\d)(?<!_\d)(?<!_\d\d) *\((?=[^(),]*\))")
"""The parser would otherwise read `2(6)` as the mixed number 2 + 6."""
_GROUP_TIMES = re.compile(r"(?<=\))\s*(?=\([^(),]*\)|\d|\\frac(?![a-z]))")
_AFTER_BINOMIAL = re.compile(
    r"(\\[dt]?binom\s*(?:\{[^{}]*\}\s*\{[^{}]*\}|\d\s*\d))\s*(?=\d|\(|[a-zA-Z]|\\(?:[dt]?binom|frac|sqrt|pi)(?![a-z]))"
)
_BEFORE_BINOMIAL = re.compile(r"(?<=[\d)!}])\s*(?=\\[dt]?binom)")
"""The parser would read a number beside a binomial coefficient as a mixed number too."""
_DEGREES = re.compile(r"(\d+(?:\.\d+)?) *\^\\circ")
_UNIT_IN_TEXT = re.compile(r"(?:(?<=[\w)}])|(?<=[\w)}] ))\\text\s*\{\s*([^{}\d]*?)\s*\}(?:\s*\^\s*\{?\d\}?)?")
_PLUS_MINUS = re.compile(r"\\pm(?![a-z])")
_SIGN_WITHIN = re.compile(r"^[^\\]*\\frac\s*\{[^{}]*\\pm(?![a-z])")
_LETTER_IN_TEXT = re.compile(r"\\text\s*\{\s*([eiC])\s*\}")
_INEXACT = re.compile(r"[.%]")
"""A number with decimals may be rounded, and a percentage may stand for a fraction."""
_BRANCHED = re.compile(r"\\sqrt|\\(?:ln|log|lvert|vert)(?![a-z])|\||\^\s*\{?-?(?:\\frac|\d+/)")
"""Matches what has a different value, or none, outside the positive numbers."""
_JUNCTION = re.compile(r"(?:<|>|\\[lg]e).*\b(or|and)\b")
_RELATION = re.compile(r"=|<|>|\\(?:le|ge|ne|in)(?![a-z])|\\text\s*\{[^{}]*(?:or|and)[^{}]*\}")


def compare_symbolically(gold: str, answer: str, problem: str = "") -> Comparison:
    """Use math-verify to compare a pair that `compare_without_algebra` could not decide."""
    try:
        found = claim(gold, answer, problem)
    except Refused as refused:
        return Comparison(equal=False, reason=str(refused))
    for one, other in found.steps:
        if not _same(one, other):
            return Comparison(equal=False, reason="the answer equates different numbers")
    for one, other in found.nearly:
        decimal, exact = quantity(other), (*read(one), None)[0]
        if (
            exact is None
            or decimal is None
            or not getattr(exact, "is_number", False)
            or not is_near(float(exact), decimal)
        ):
            return Comparison(equal=False, reason="an approximation in the answer is wrong")
    if (decided := compared(found)) is not None and decided.equal:
        return decided
    gold, answer = _with_same_parentheses(found.gold, found.answer)
    same = _compared(gold, answer)
    if not same.equal and (rewritten := _SLASHED.sub(r"\\frac{\1}{\2}", answer)) != answer:
        same = _compared(gold, rewritten)  # `1/2x` can mean x/2 or 1/(2x)
    if not same.equal and _BRANCHED.search(gold + answer) and (golds := read(gold)) and (answers := read(answer)):
        positive = read_problem(problem).positive
        if same_on_reals(golds[0], answers[0], positive=positive):
            return Comparison(equal=True, reason="equal wherever both are real")
    return same


def _compared(gold: str, answer: str) -> Comparison:
    golds, answers = read(gold), read(answer)
    if not answers:
        return Comparison(equal=False, reason="the answer cannot be parsed as mathematics")
    if not _same(gold, answer):
        return Comparison(equal=False, reason="not equal")
    exact = "." not in gold + answer or _equal(golds, answers, 12, 30)
    return Comparison(equal=True, exact=exact, reason="equal" if exact else f"equal to {DECIMALS} decimals")


def _same(gold: str, answer: str) -> bool:
    """Return whether two formulas are equal. math-verify is asked only for what arithmetic does not decide."""
    golds, answers = read(gold), read(answer)
    if golds and answers and not _INEXACT.search(gold + answer):
        decided = same_value(golds[0], answers[0])
        if decided is not None:
            return decided
    return _equal(golds, answers, 6, 15) and not (golds and answers and _tiny_and_different(golds[0], answers[0]))


def check_gold(gold: str) -> Comparison:
    """Compare the gold answer with an arbitrary number, to find out whether the gold answer alone is too expensive."""
    return _compared(claim(gold, gold).gold, "12345678")


def silence_math_verify() -> None:
    """Stop math-verify from logging the text that it parses. Call this in the process that compares answers."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def _with_same_parentheses(gold: str, answer: str) -> tuple[str, str]:
    """Give both lists parentheses, or neither: math-verify reads a list without them as a set."""
    gold, answer = normalized(gold), normalized(answer)
    if "," in gold and "," in answer and not _RELATION.search(gold + answer):
        if brackets(gold) == "(" and not brackets(answer) and "(" not in answer and "[" not in answer:
            return gold, f"({answer})"
        if brackets(answer) == "(" and not brackets(gold) and "(" not in gold and "[" not in gold:
            return gold, answer[1:-1]
    return gold, answer


@lru_cache(maxsize=256)
def read(text: str) -> tuple[Any, ...]:
    """Parse with math-verify: sympy expressions followed by the text itself, or an empty tuple if parsing fails."""
    from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
    from math_verify import LatexExtractionConfig, parse  # type: ignore[import-untyped]

    text = _LETTER_IN_TEXT.sub(r" \1 ", _UNIT_IN_TEXT.sub(_without_unit, text))
    if found := _both_signs(text):
        return found
    text = _BEFORE_BINOMIAL.sub(r"\\cdot ", _AFTER_BINOMIAL.sub(r"\1\\cdot ", text))
    text = _GROUP_TIMES.sub(r" \\cdot ", text)
    text = _TIMES_GROUP.sub(r"\\cdot (", _APPLIED_PI.sub(r"\\pi \\cdot (", text))
    if _TRIGONOMETRY.search(text):
        text = _DEGREES.sub(r"(\\frac{\1\\pi}{180})", text)
    # Its list of units contains the letters c, g, h, l, m, o, s and t, which are variables here.
    normalization = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True)
    # Workers limit the CPU time. The library's limits apply to wall time, so verdicts would depend on the load.
    found = parse(
        f"\\boxed{{{text}}}",
        extraction_config=[LatexExtractionConfig(normalization_config=normalization)],
        parsing_timeout=None,
    )
    return tuple(_joined(_with_one_i(part), text) for part in found)


def _both_signs(text: str) -> tuple[Any, ...]:
    r"""Return both values of `\frac{2 \pm \sqrt{20}}{2}`, which the parser cannot read; else an empty tuple."""
    from sympy import FiniteSet  # type: ignore[import-untyped]

    if not _SIGN_WITHIN.search(text) or "," in text or text.count(r"\mp"):
        return ()
    values = [read(_PLUS_MINUS.sub(sign, text)) for sign in "+-"]
    return (FiniteSet(*(value[0] for value in values)), text) if all(len(value) > 1 for value in values) else ()


def _without_unit(match: re.Match[str]) -> str:
    words = match[1].replace("/", " ").split()
    return "" if words and all(is_unit(word.strip(".")) for word in words) else match[0]


def _joined(expression: Any, text: str) -> Any:
    r"""Convert `x < 2 \text{ or } x > 3` to its solution set; return other expressions unchanged."""
    from sympy import And, FiniteSet, Or, Rel

    word = _JUNCTION.search(text)
    several = isinstance(expression, FiniteSet) and all(isinstance(part, Rel) for part in expression)
    if word is None or not several or len(expression.free_symbols) != 1:
        return expression
    return (Or if word[1] == "or" else And)(*expression).as_set()


def _with_one_i(expression: Any) -> Any:
    """Read a variable `i` as the imaginary unit, and the others as real. The parser's own choice depends on spaces."""
    from sympy import Eq, I, Symbol

    symbols = getattr(expression, "free_symbols", ())
    if not any(symbol.name == "i" for symbol in symbols):
        return expression
    replacements = {old: I if old.name == "i" else Symbol(old.name, real=True) for old in symbols}
    try:
        if isinstance(expression, Eq):  # otherwise `2i = i + i` would evaluate to True
            return Eq(expression.lhs.subs(replacements), expression.rhs.subs(replacements), evaluate=False)
        return expression.subs(replacements)
    except (TypeError, ValueError, AttributeError):  # `x < i` is undefined: a wrong answer, not a verification failure
        return expression


def _tiny_and_different(gold: Any, answer: Any) -> bool:
    """Return whether the numbers differ, but are so small that math-verify would ignore the difference."""
    from sympy import Expr

    if not (isinstance(gold, Expr) and isinstance(answer, Expr) and gold.is_number and answer.is_number):
        return False
    one, other = gold.evalf(), answer.evalf()
    return bool(abs(one) < TINY and abs(one - other) > TINY * abs(one))


def _equal(golds: tuple[Any, ...], answers: tuple[Any, ...], rounding: int, precision: int) -> bool:
    from math_verify import verify

    return bool(
        verify(
            list(golds),
            list(answers),
            float_rounding=rounding,
            numeric_precision=precision,
            allow_set_relation_comp=True,
            timeout_seconds=None,
        )
    )


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

    math-verify evaluates the difference to 15 digits and drops what is smaller, so `2 - 2^{-99}` and `2 - 2^{-100}` are
    equal to it. Right pairs differ by nothing; wrong pairs that real problems suggest differ by more than `TOLERANCE`.
    """
    from sympy import And, Expr, FiniteSet, Interval, MatrixBase, Tuple, Union
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
