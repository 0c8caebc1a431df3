"""Compares an answer with the gold answer without algebra; `algebra` decides the remaining cases.

This module also decides the cases that math-verify gets wrong: number bases, units, percentages, hedged answers, sets
mistaken for pairs, and very small decimals.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rollyard.records.types import Record
from rollyard.resources_servers.answers import latex
from rollyard.resources_servers.answers.claims import Claim, Refused, claim
from rollyard.resources_servers.answers.formula_complexity import why_too_costly
from rollyard.resources_servers.answers.quantity import Quantity, quantity, unit_of
from rollyard.resources_servers.answers.sets import with_usual_sets

MAX_CHARACTERS = 2000
"""Longer answers are wrong and are not parsed: gold answers are much shorter, and parsing would take seconds."""
DECIMALS = 6
"""A decimal with at least this many decimal places equals the exact number that rounds to it."""
_ARTICLE = re.compile(r"^(\\text\s*\{)?\s*(?:an?|the)\s+(?!and\b|or\b)(?=[a-zA-Z]{3})", re.IGNORECASE)
_CLOCK = re.compile(r"(?:\\text\{)?(\d{1,2})(?::(\d\d))?\}?(?:(?:\\text\{)?([ap])\.?m\.?\}?)?", re.IGNORECASE)
_RATIO = re.compile(r"\d+:\d+")
_HEDGE = re.compile(r"\\text\s*\{[^{}]*\b(?:or|not|and)\b[^{}]*\}|\bor\b")


class Comparison(Record):
    equal: bool
    exact: bool = True
    """False if the answer and the gold answer match only as decimal approximations."""
    reason: str
    """A short explanation of the result."""


def compare_without_algebra(gold: str, answer: str, *, problem: str = "") -> Comparison | None:
    """Return None if the comparison requires algebra. `problem` says which quantity is requested."""
    if len(answer) > MAX_CHARACTERS:
        reason = f"the answer has {len(answer)} characters; the limit is {MAX_CHARACTERS}"
        return Comparison(equal=False, reason=reason)
    if answer == gold and answer.isalnum():
        return Comparison(equal=True, reason="the same text")
    if not latex.without_spaces(answer):
        return Comparison(equal=False, reason="the answer is empty")
    if latex.without_spaces(gold) == latex.without_spaces(answer) or latex.unquoted(gold) == latex.unquoted(answer):
        return Comparison(equal=True, reason="the same text")
    if _LETTERS.fullmatch(gold) and _letters(gold.casefold()) == _letters(latex.words(answer) or ""):
        return Comparison(equal=True, reason="the same letters")
    if latex.choice(answer) is None and (error := latex.bracket_error(with_usual_sets(answer))) is not None:
        return Comparison(equal=False, reason=error)
    if (error := why_too_costly(gold, answer)) is not None:
        return Comparison(equal=False, reason=error)
    try:
        found = claim(gold, answer, problem)
    except Refused as refused:
        return Comparison(equal=False, reason=str(refused))
    decided = compared(found)
    return decided if decided is None or not decided.equal or contradicts(found) is False else None


def compared(found: Claim) -> Comparison | None:
    """Compare the formulas of a claim without algebra. Return None if the comparison requires algebra."""
    gold, answer = found.gold, found.answer
    if contradicts(found):
        return Comparison(equal=False, reason="the answer equates different numbers")
    if latex.without_spaces(gold) == latex.without_spaces(answer):
        return Comparison(equal=True, reason="the same text")
    return (
        _same_base(gold, answer)
        or _same_time(gold, answer)
        or _same_words(gold, answer)
        or _same_quantity(gold, answer)
        or _same_brackets(gold, answer)
    )


def contradicts(found: Claim) -> bool | None:
    """Return whether a step of the answer is false, or None if checking that requires algebra."""
    open_steps = False
    for one, other in (*found.steps, *found.nearly):
        first, second = quantity(one), quantity(other)
        if first is None or second is None:
            open_steps = open_steps or latex.without_spaces(one) != latex.without_spaces(other)
        elif (one, other) in found.nearly:
            if not is_near(float(first.value), second):
                return True
        elif first.value / (100 if first.percent else 1) != second.value / (100 if second.percent else 1):
            return True
    return None if open_steps else False


def is_near(exact: float, decimal: Quantity) -> bool:
    """Return whether `decimal` is `exact`, rounded or truncated to the given number of digits."""
    scale = 100 if decimal.percent else 1
    given, last = float(decimal.value) / scale, 10.0 ** -(decimal.decimals or 0) / scale
    beyond = abs(given) - abs(exact)
    return exact * given >= 0 and -last < beyond <= 0.5001 * last


def _same_base(gold: str, answer: str) -> Comparison | None:
    """Compare numbers with an explicit base. Digits and base must both match: the problem asks for a specific base."""
    wanted, given = latex.based(gold), latex.based(answer)
    if wanted == given:
        return None if wanted is None else Comparison(equal=True, reason="the same digits in the same base")
    if wanted is None and given is not None and given[1] == 10:
        return None
    found, expected = ("no base" if one is None else f"base {one[1]}" for one in (given, wanted))
    return Comparison(equal=False, reason=f"the answer has {found}; expected {expected}")


def _same_time(gold: str, answer: str) -> Comparison | None:
    """Compare times of day. At least one must contain `a.m.` or `p.m.`, because `4:30` alone may be a ratio."""
    wanted, given = _CLOCK.fullmatch(latex.without_spaces(gold)), _CLOCK.fullmatch(latex.without_spaces(answer))
    if not wanted or not given or not (wanted[3] or given[3]):
        return None
    halves = {half.lower() for half in (wanted[3], given[3]) if half}
    clocks = {
        (int(time[1]) + (12 if _is_short_afternoon(time, wanted, given) else 0), int(time[2] or 0))
        for time in (wanted, given)
    }
    equal = len(halves) == len(clocks) == 1
    return Comparison(equal=equal, reason="the same time" if equal else "a different time")


def _is_short_afternoon(time: re.Match[str], *both: re.Match[str]) -> bool:
    """Return whether `time` is a p.m. time that is compared with a 24-hour time, as in 4:30 p.m. and 16:30."""
    return (time[3] or "").lower() == "p" and int(time[1]) < 12 and any(int(one[1]) > 12 and one[2] for one in both)


_LETTERS = re.compile(r"[A-Z](?:\s*,\s*[A-Z])+")
"""Several choices, as MATH writes them."""


def _same_words(gold: str, answer: str) -> Comparison | None:
    wanted = latex.words(gold)
    if wanted is None:
        return None
    given = latex.words(_ARTICLE.sub(r"\1", answer)) or latex.unquoted(answer).strip("().").casefold()
    if len(wanted) == 1 and (chosen := latex.choice(answer)) is not None:
        given = chosen[0].casefold()
    letters = _letters(wanted)
    equal = wanted == given or (
        letters is not None and letters in (_letters(given), _letters(latex.plain_words(answer)))
    )
    return Comparison(equal=equal, reason="the same words" if equal else "different words")


def _letters(text: str) -> list[str] | None:
    """Return the letters of a multiple-choice answer such as `C, E`, sorted because their order does not matter."""
    letters = [bare for letter in re.split(r"[,;&]|\band\b", text) if (bare := letter.strip("( )"))]
    return sorted(letters) if letters and all(len(letter) == 1 and letter.isalpha() for letter in letters) else None


def _same_quantity(gold: str, answer: str) -> Comparison | None:
    wanted, given = quantity(gold), quantity(answer)
    units = (wanted.unit if wanted else unit_of(gold)), (given.unit if given else unit_of(answer))
    if units[0] and units[1]:
        parts = zip(units[0].split("/"), units[1].split("/"), strict=False)  # `dollars` is short for `dollars per hour`
        if any(part != other for part, other in parts):
            return Comparison(equal=False, reason=f"the answer is in {units[1]}; expected {units[0]}")
    if wanted is None or given is None:
        return None
    if given.value in _meanings(wanted, given):
        return Comparison(equal=True, reason="the same number")
    if wanted.percent == given.percent and _rounds(wanted, given):
        return Comparison(equal=True, exact=False, reason=f"equal to {DECIMALS} decimals")
    return Comparison(equal=False, reason="a different number")


def _meanings(wanted: Quantity, given: Quantity) -> tuple[Fraction, ...]:
    """Return the values that count as equal to the gold number, depending on the percent signs."""
    if wanted.percent == given.percent:
        return (wanted.value,)
    if wanted.percent:  # 50% is 0.5, and the sign may be omitted
        return wanted.value, wanted.value / 100
    # A gold value under 1 is a fraction of the whole, so 0.5% does not equal 0.5. Otherwise `%` acts as a unit.
    return (wanted.value * 100,) if abs(wanted.value) < 1 else (wanted.value, wanted.value * 100)


def _rounds(one: Quantity, other: Quantity) -> bool:
    """Return whether one number is a decimal approximation of the other. Long decimals may also be truncated."""
    decimal, exact = (one, other) if one.decimals is not None else (other, one)
    if exact.decimals is not None or decimal.decimals is None or decimal.decimals < DECIMALS:
        return False
    if decimal.value == 0:
        return False
    last = Fraction(1, 10**decimal.decimals)
    error = abs(exact.value - decimal.value)
    return error < last if decimal.decimals > DECIMALS else 2 * error <= last


def _same_brackets(gold: str, answer: str) -> Comparison | None:
    """Reject another kind of answer: a set for a pair, a half-open interval for an open one, several values for one."""
    kinds = latex.brackets(gold), latex.brackets(answer)
    if "{" in kinds and (set(kinds) & {"(", "["}):
        return Comparison(equal=False, reason="a set is neither a pair nor an interval")
    # At infinity, both kinds of brackets mean the same.
    if (
        all(kinds)
        and latex.half_open(gold) != latex.half_open(answer)
        and "\\infty" not in latex.normalized(gold + answer)
    ):
        return Comparison(equal=False, reason="different brackets")
    if kinds[1] in ("(", "[") and "," in answer and not kinds[0] and not re.search(r",|<|>|\\[lg]e|\\[a-z]", gold):
        return Comparison(equal=False, reason="the answer is a pair or an interval; expected one value")
    if kinds[0] and not kinds[1] and "\\pm" in answer and "\\pm" not in gold:
        return Comparison(equal=False, reason="the answer gives two values; expected an interval or a pair")
    if (
        kinds == ("(", "[")
        and gold.count(",") == answer.count(",") == 1
        and "\\infty" not in latex.normalized(gold + answer)
    ):
        return Comparison(equal=False, reason="different brackets")
    if _RATIO.fullmatch(latex.without_spaces(answer)) and quantity(gold) is not None and quantity(answer) is None:
        return Comparison(equal=False, reason="the answer is a ratio; expected one number")
    if _HEDGE.search(latex.normalized(answer)) and not re.search(r"\\text|\bor\b|,|\\pm|\\cup|<|>|\\[lg]e", gold):
        return Comparison(equal=False, reason="more than one answer is given")
    return None
