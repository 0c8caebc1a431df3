"""Finds what a response states as its answers, and tells whether a text lists several answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from rollyard.analysis.findings.answer_values import boxed, number_of

_TAGGED = re.compile(r"<answer>(.{1,200}?)</answer>", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(r"^#{4} {0,9}(\S[^\n]{0,99})", re.MULTILINE)
_STATED = re.compile(
    r"\\f?box(?:ed)?\s?\{((?:[^{}]|\{[^{}]{0,80}\}){1,100})\}|(?i:<answer>)([^<]{1,200})(?i:</answer>)"
    r"|^#{4} {0,9}([^\s#][^\n]{0,99})$"
    r"|\b(?i:answer)(?: is|:)[ *$]{0,4}(?:(-?\d[\d,.]{0,30}|[A-Z])(?![\w-])|\(([A-Z])\))",
    re.MULTILINE,
)
_SEPARATES = re.compile(r"(?:[\W_]|\b(?:or|and|text|the|final|is|maybe|perhaps|possibly)\b){0,30}", re.IGNORECASE)
_LAST_STATED = re.compile(r"(?i:answer)(?: is|:)[ *]*([^\n]{1,1000}?)[ *]*\Z")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LEAST_LISTED = 8
_LEAST_STATED = 5
_CLOSE = 80
"""Number of characters from one stated answer to the next, on average, below which no calculation leads to it."""
_LIST = re.compile(
    r"(?<![\d.])-?\d[\d.]{0,20}"
    r"(?:[\s,;/|$'\"`*()\[\]{}\\-]{1,9}(?:(?:or|and)\s{1,3}[$'\"`*(\[{]{0,2})?-?\d[\d.]{0,20}){7,}"
)
_OR = re.compile(r"\bor\b|\\lor\b", re.IGNORECASE)
_SEPARATOR = re.compile(r"\\lor|\\text\s{0,3}\{\s{0,3}(?:or|and)\s{0,3}\}|\b(?:or|and|either|one of)\b|[,;/|]|\s")
_IN_A_SET = re.compile(r"\A(?:\w\s?(?:=|\\in)\s?)?\\?[{\[](.*?)\\?[}\]]\Z", re.DOTALL)
_LETTERS_IN_A_ROW = re.compile(r"ABC?D?E?")
_BRACKETED = re.compile(r"\)\s{0,9}(?=\()")
_CHOICE = re.compile(r"(?:\\text\s?\{)?\(?([A-Z])\)?\}?\.?")
_WITH_COMMAS = re.compile(r"(?<![\d,])\d{1,3}(?:,(?:\\!)?\d{3})+(?![\d,])")
_BOUND = r"-?(?:\d{1,20}(?:\.\d{1,20})?|\\infty)"
_RANGE = re.compile(
    rf"^\W{{0,5}}(?:(?:[A-Za-z]{{1,12}}\s){{0,3}}(?:between\s|range\s?\()|(?:[A-Za-z]\s?\\in\s?[(\[]|\\?\[|\((?=-\\infty))\s?)"
    rf"(?P<low>{_BOUND})\s?(?:,|and|to|\u2013|\.\.)\s?(?P<high>{_BOUND})[\])\s.$]{{0,9}}$"
    rf"|^\W{{0,3}}(?P<from>{_BOUND})\s?(?:to|\u2013|\.\.|(?:\\leq?|<)\s?\w\s?(?:\\leq?|<))\s?(?P<until>{_BOUND})[\s.$]{{0,9}}$"
    rf"|^\W{{0,3}}(?P<centre>{_BOUND})\s?(?:\\pm|\u00b1|\+/-)\s?(?P<spread>{_BOUND})[\s.$]{{0,9}}$"
)
_ROUNDED = 0.02
"""Relative difference up to which two numbers, not both whole, may be the same one, rounded."""
_LEAST_COUNTED = 12
_MAX_CHARACTERS = 20_000
_BEGINNING = 100
"""Number of characters that show most texts not to be lists."""
_MAX_ALTERNATIVES = 1000
"""Maximum number of characters of an answer that may be a list."""


def side_by_side(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the answers in boxes, in `<answer>` tags, after `####` or after "answer is" that follow each other with
    nothing but marks and words such as "or" between them, and whether "or" is one of these; nothing for one answer.
    """
    text = text[-_MAX_CHARACTERS:] if _may_state(text, 2) else ""
    run: list[str] = []
    end, has_or = 0, False
    for found in _STATED.finditer(text):
        between = text[end : found.start()]
        if run and not _SEPARATES.fullmatch(between):
            yield run, has_or
            run, has_or = [], False
        has_or |= bool(run) and _OR.search(between) is not None
        run.append(next(filter(None, found.groups()), "").strip().rstrip(".,"))
        end = found.end()
    if run:
        yield run, has_or


def is_dense(text: str) -> bool:
    """Return whether 5 different numbers or more are stated as answers, closely one after another, whatever words stand
    between them. Intermediate results and further questions lie further apart.
    """
    if not _may_state(text, _LEAST_STATED):
        return False
    found = [*_STATED.finditer(text[-_MAX_CHARACTERS:])]
    values = {number_of(next(filter(None, one.groups()), "").strip().rstrip(".,")) for one in found} - {None}
    return len(values) >= _LEAST_STATED and found[-1].start() - found[0].start() < _CLOSE * (len(found) - 1)


def last_stated(text: str) -> str:
    """Return the last answer in a box, in a tag or after `####`; '' if there is none."""
    found = [*boxed(text)] or _TAGGED.findall(text) or _MARKED.findall(text)
    return found[-1].strip() if found else ""


def announced(text: str) -> str:
    """Return what follows "answer is" or "answer:" in the last line of a text; '' if nothing does."""
    found = _LAST_STATED.search(text.rstrip().rpartition("\n")[2][-_MAX_ALTERNATIVES:])
    return found[1] if found else ""


def is_single(gold: str) -> bool:
    """Return whether a gold answer is certainly one value: a number, or the letter of a choice."""
    return number_of(gold) is not None or letter_of(gold) is not None


def letter_of(text: str) -> str | None:
    """Return the letter of a choice, such as `(B)`; None if a text is anything else."""
    found = _CHOICE.fullmatch(text)
    return found[1] if found else None


def are_alternatives(answers: Iterable[str], gold: str, *, has_or: bool) -> bool:
    """Return whether answers are different values and the gold answer, a single value, is one of them: 2 letters, or 3
    numbers, or 2 numbers with "or", because 2 numbers can answer two questions.
    """
    right = number_of(gold)
    if right is None:
        letters = set(map(letter_of, answers))
        return None not in letters and len(letters) > 1 and letter_of(gold) in letters
    values: list[tuple[float, ...]] = []
    """The readings of each answer; a percentage has two."""
    for answer in answers:
        value = number_of(answer)
        if value is None:
            return False
        readings = (value, value / 100) if "%" in answer else (value,)
        if not any(_is_close(one, other) for one in readings for known in values for other in known):
            values.append(readings)
    return len(values) >= (2 if has_or else 3) and any(_is_close(one, right) for known in values for one in known)


def lists_alternatives(answer: str, gold: str) -> bool:
    """Return whether an answer consists of alternatives, one of which is the gold answer, a single value."""
    if len(answer) > _MAX_ALTERNATIVES or number_of(answer) is not None or not is_single(gold):
        return False
    plain = _BRACKETED.sub(") ", _IN_A_SET.sub(r"\1", answer.strip(" .$")))
    if number_of(gold) is None and _LETTERS_IN_A_ROW.fullmatch(plain):
        return (letter_of(gold) or " ") in plain
    has_or = _OR.search(plain) is not None
    for text in (plain, _WITH_COMMAS.sub(lambda found: re.sub(r"\D", "", found[0]), plain)):
        parts = (part.strip(" ().$\\") for part in _SEPARATOR.split(text))
        if are_alternatives(filter(None, parts), gold, has_or=has_or):
            return True
    return False


def is_range(answer: str, gold: float) -> bool:
    """Return whether an answer is a range of numbers around the gold number, such as "between 3 and 9", or a wrong
    number with a tolerance. A comma between two numbers without brackets can be a decimal comma.
    """
    found = _RANGE.search(answer) if len(answer) <= _MAX_ALTERNATIVES else None
    if found is None:
        return False
    if found["spread"]:
        centre, spread = _bound(found["centre"]), _bound(found["spread"])
        return centre - spread < gold < centre + spread and not _is_close(centre, gold)
    return _bound(found["low"] or found["from"]) < gold < _bound(found["high"] or found["until"])


def counts_up(text: str) -> bool:
    """Return whether a text ends in a list of 12 or more consecutive whole numbers that begins above 1."""
    lists = [*_LIST.finditer(text[-_MAX_CHARACTERS:])]
    if not lists or len(text[-_MAX_CHARACTERS:]) - lists[-1].end() > 3:
        return False
    numbers = [float(number) for number in _NUMBER.findall(lists[-1][0])]
    return len(numbers) >= _LEAST_COUNTED and numbers[0] > 1 and all(b - a == 1 for a, b in pairwise(numbers))


def is_list_around(text: str, value: float, *, letters: int) -> bool:
    """Return whether a text is a list of 8 or more different numbers with `value` inside, and has at most so many
    letters beside it. A list that begins or ends with `value` can be a sequence that leads to it.
    """
    if sum(map(str.isalpha, text[:_BEGINNING])) > letters or sum(map(str.isalpha, text)) > letters:
        return False
    found = _LIST.search(text[-_MAX_CHARACTERS:])
    if found is None:
        return False
    numbers = [float(number) for number in _NUMBER.findall(found[0])]
    return len(set(numbers)) >= _LEAST_LISTED and value in numbers and value not in (numbers[0], numbers[-1])


def _may_state(text: str, least: int) -> bool:
    """Return whether a text has the marks of so many answers. Looking for them is much faster than the expressions."""
    return text.count("box") + text.count("####") + text.lower().count("answer") >= least


def _bound(text: str) -> float:
    return float(text.replace("\\infty", "inf"))


def _is_close(value: float, other: float) -> bool:
    if value.is_integer() and other.is_integer():
        return value == other
    return abs(value - other) <= _ROUNDED * min(abs(value), abs(other))
