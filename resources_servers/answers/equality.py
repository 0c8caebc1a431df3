"""Whether an answer means the gold one, as far as that takes no algebra; `algebra` is asked for the rest.

What math-verify gets wrong is decided here, before it is asked: number bases, units, percents, hedged answers, sets
given as pairs, small decimals.
"""

from __future__ import annotations

import re
from fractions import Fraction

from resources_servers.answers.brackets import brackets, half_open, misshapen
from resources_servers.answers.latex import squeezed, tidied, unquoted, words
from resources_servers.answers.naming import without_names
from resources_servers.answers.quantity import Quantity, quantity, unit_of
from services.types import Record

MOST_CHARACTERS = 2000
"""Longer answers are wrong unread: no gold answer comes near, and parsers take seconds over them."""
DECIMALS = 6
"""A decimal with so many digits behind the point stands for the exact number that it is rounded from."""
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
}  # fmt: skip
_BASED = re.compile(
    r"\(?(-?[0-9A-Fa-f]+(?:\.[0-9A-Fa-f]+)?)\)?(?:_\{?(?:\\text\{)?(?:base)?(\w+)\}*|\\text\{\(?(?:in)?base(\w+)\)?\}|\\text\{\(?(?:in)?base\}(\d+))"
)
_CHOICE_AND_VALUE = re.compile(r"(?:\\text\s*\{ *)?\(([A-Z])\)(?!.*\([A-Z]\)).*")
"""`\\textbf{(B)} 5`: the letter is what was asked for."""
_CLOCK = re.compile(r"(?:\\text\{)?(\d{1,2})(?::(\d\d))?\}?(?:(?:\\text\{)?([ap])\.?m\.?\}?)?", re.IGNORECASE)
_HEDGE = re.compile(r"\\text\s*\{[^{}]*\b(?:or|not|and)\b[^{}]*\}|\bor\b")


class Comparison(Record):
    """What a comparison says."""

    equal: bool
    exact: bool = True
    """False: equal only as a decimal is to the number that it is rounded from."""
    reason: str
    """One clause for the person who reads the verdict."""


def quick(gold: str, answer: str, *, any_words: bool = False) -> Comparison | None:
    """What can be said without algebra; None when it takes some. `any_words`: `18 eggs` is 18."""
    if not squeezed(answer):
        return Comparison(equal=False, reason="the answer is empty")
    if squeezed(gold) == squeezed(answer) or unquoted(gold) == unquoted(answer):
        return Comparison(equal=True, reason="the same text")
    if len(answer) > MOST_CHARACTERS:
        return Comparison(equal=False, reason=f"the answer has {len(answer)} characters, over {MOST_CHARACTERS}")
    if (problem := misshapen(answer)) is not None:
        return Comparison(equal=False, reason=problem)
    if (contradiction := _contradiction(answer, any_words)) is not None:
        return contradiction
    gold, answer = without_names(gold, answer)
    return (
        _same_base(gold, answer)
        or _same_time(gold, answer)
        or _same_words(gold, answer)
        or _same_quantity(gold, answer, any_words)
        or _same_brackets(gold, answer)
    )


def _same_base(gold: str, answer: str) -> Comparison | None:
    """Numbers with a base: the digits and the base must be given, because the base is what was asked for."""
    wanted, given = _based(gold), _based(answer)
    if wanted == given:
        return None if wanted is None else Comparison(equal=True, reason="the same digits in the same base")
    if wanted is None and given is not None and given[1] == 10:
        return None
    return Comparison(equal=False, reason=f"in {_base_words(given)}; expected {_base_words(wanted)}")


def _based(text: str) -> tuple[str, int] | None:
    match = _BASED.fullmatch(squeezed(text))
    if match is None:
        return None
    name = (match[2] or match[3] or match[4]).lower()
    base = int(name) if name.isdecimal() else _BASES.get(name)
    return (match[1].upper(), base) if base else None


def _base_words(based: tuple[str, int] | None) -> str:
    return "no base" if based is None else f"base {based[1]}" if based else ""


def _same_time(gold: str, answer: str) -> Comparison | None:
    """Times of day, one at least with `a.m.` or `p.m.`: a bare `4:30` may be a ratio."""
    wanted, given = _CLOCK.fullmatch(squeezed(gold)), _CLOCK.fullmatch(squeezed(answer))
    if not wanted or not given or not (wanted[3] or given[3]):
        return None
    halves = {half.lower() for half in (wanted[3], given[3]) if half}
    clocks = {(int(time[1]), int(time[2] or 0)) for time in (wanted, given)}
    equal = len(halves) == len(clocks) == 1
    return Comparison(equal=equal, reason="the same time" if equal else "another time")


def _same_words(gold: str, answer: str) -> Comparison | None:
    wanted = words(gold)
    if wanted is None:
        return None
    given = words(answer) or unquoted(answer).strip("().").casefold()
    if (led := _CHOICE_AND_VALUE.fullmatch(tidied(answer))) and not _HEDGE.search(answer):
        given = led[1].casefold()
    equal = wanted == given or (_letters(wanted) is not None and _letters(wanted) == _letters(given))
    return Comparison(equal=equal, reason="the same words" if equal else "other words")


def _letters(spoken: str) -> list[str] | None:
    """Of a choice of several, `C, E`: their order says nothing."""
    named = [letter.strip("( )") for letter in spoken.replace(" and ", ",").split(",")]
    return sorted(named) if all(len(letter) == 1 and letter.isalpha() for letter in named) else None


def _same_quantity(gold: str, answer: str, any_words: bool) -> Comparison | None:
    wanted, given = quantity(gold, any_words=any_words), quantity(answer, any_words=any_words)
    units = (wanted.unit if wanted else unit_of(gold)), (given.unit if given else unit_of(answer))
    if units[0] and units[1] and _unlike(units[0], units[1]):
        return Comparison(equal=False, reason=f"in {units[1]}; expected {units[0]}")
    if wanted is None or given is None:
        return None
    if given.value in _meanings(wanted, given):
        return Comparison(equal=True, reason="the same number")
    if wanted.percent == given.percent and _rounds(wanted, given):
        return Comparison(equal=True, exact=False, reason=f"equal to {DECIMALS} decimals")
    return Comparison(equal=False, reason="another number")


def _unlike(one: str, other: str) -> bool:
    """True for two units; `dollars` may be short for `dollars per hour`."""
    return any(part != counterpart for part, counterpart in zip(one.split("/"), other.split("/"), strict=False))


def _meanings(wanted: Quantity, given: Quantity) -> tuple[Fraction, ...]:
    """The numbers that the given one may be, written as it is."""
    if wanted.percent == given.percent:
        return (wanted.value,)
    if wanted.percent:  # 50% is 0.5, and the sign may be left away
        return wanted.value, wanted.value / 100
    # Below 1 it is a share, and 0.5% is another one; else the sign is a unit.
    return (wanted.value * 100,) if abs(wanted.value) < 1 else (wanted.value, wanted.value * 100)


def _rounds(one: Quantity, other: Quantity) -> bool:
    """True when one is written as a decimal that stands for the other, exact one; long ones may be cut, not rounded."""
    decimal, exact = (one, other) if one.decimals is not None else (other, one)
    if exact.decimals is not None or decimal.decimals is None or decimal.decimals < DECIMALS:
        return False
    if decimal.value == 0:
        return False
    last = Fraction(1, 10**decimal.decimals)
    error = abs(exact.value - decimal.value)
    return error < last if decimal.decimals > DECIMALS else 2 * error <= last


def _contradiction(answer: str, any_words: bool) -> Comparison | None:
    """`5 = 6` would be 6 to whoever reads the last side."""
    sides = [quantity(side, any_words=any_words) for side in tidied(answer).split("=")]
    values = {side.value / (100 if side.percent else 1) for side in sides if side is not None}
    if len(values) > 1:
        return Comparison(equal=False, reason="the answer says that different numbers are equal")
    return None


def _same_brackets(gold: str, answer: str) -> Comparison | None:
    """A set is no pair and no interval, and a half-open interval is none of the others."""
    kinds = brackets(gold), brackets(answer)
    if "{" in kinds and (set(kinds) & {"(", "["}):
        return Comparison(equal=False, reason="a set is no pair and no interval")
    # At an infinite end both brackets mean the same.
    if all(kinds) and half_open(gold) != half_open(answer) and "\\infty" not in tidied(gold + answer):
        return Comparison(equal=False, reason="other brackets")
    if _HEDGE.search(tidied(answer)) and not re.search(r"\\text|\bor\b|,|\\pm|\\cup|<|>|\\[lg]e", gold):
        return Comparison(equal=False, reason="more than one answer is given")
    return None
