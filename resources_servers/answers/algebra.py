"""Compares an answer with the gold answer using math-verify, which may never finish: run it in a worker process."""

from __future__ import annotations

import logging
import re
import warnings
from functools import lru_cache
from typing import Any

from rollyard.resources_servers.answers.brackets import brackets
from rollyard.resources_servers.answers.claims import Refused, claim
from rollyard.resources_servers.answers.equality import DECIMALS, Comparison, compared, is_near
from rollyard.resources_servers.answers.exact import same_on_reals, same_value
from rollyard.resources_servers.answers.latex import normalized
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
    """Put parentheses around both lists or around neither: math-verify reads a pair without parentheses as an unordered
    set, and a list in parentheses as a pair.
    """
    gold, answer = normalized(gold), normalized(answer)
    if "," in gold and "," in answer and not _RELATION.search(gold + answer):
        if brackets(gold) == "(" and not brackets(answer) and "(" not in answer and "[" not in answer:
            return gold, f"({answer})"
        if brackets(answer) == "(" and not brackets(gold) and "(" not in gold and "[" not in gold:
            return gold, answer[1:-1]
    return gold, answer


@lru_cache(maxsize=256)
def read(text: str) -> tuple[Any, ...]:
    """Parse `text` with math-verify. Return sympy expressions followed by the text itself, or an empty tuple if parsing
    fails.
    """
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
    r"""Return the set of both values of a formula such as `\frac{2 \pm \sqrt{20}}{2}`, which the parser cannot read, or
    an empty tuple for anything else.
    """
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
    """If there is a variable `i`, treat it as the imaginary unit and the others as real. The parser's own choice
    depends on spaces.
    """
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
