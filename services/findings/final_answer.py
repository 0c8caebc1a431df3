"""Finds what a response states as its answers, and tells whether a text lists several answers or states none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from rollyard.services.findings.answer_values import boxed, number_of

_TAGGED = re.compile(r"<answer>(.{1,200}?)</answer>", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(r"^#{4} *(\S[^\n]{0,99})", re.MULTILINE)
_STATED = re.compile(r"\b(?i:answer)(?: is|:)[ *$]{0,4}(?:(-?\d[\d,.]{0,30}|[A-Z])(?![\w-])|\(([A-Z])\))")
_LAST_STATED = re.compile(r"(?i:answer)(?: is|:)[ *]*([^\n]{1,300}?)[ *]*\Z")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LEAST_LISTED = 8
_LIST = re.compile(r"-?\d[\d.]*(?:[\s,;/|$'\"`*()\[\]{}\\-]{1,9}(?:(?:or|and)\s{1,3}[$'\"`*(\[{]{0,2})?-?\d[\d.]*){7,}")
_SEPARATOR = re.compile(r"\\lor|\\text\s*\{\s*(?:or|and)\s*\}|\bor\b|\band\b|\beither\b|[,;/|]|\s")
_IN_A_SET = re.compile(r"\A(?:\w\s*(?:=|\\in)\s*)?\\?[{\[](.*?)\\?[}\]]\Z", re.DOTALL)
_LETTERS_IN_A_ROW = re.compile(r"ABC?D?E?")
_BRACKETED = re.compile(r"\)\s*(?=\()")
_CHOICE = re.compile(r"(?:\\text\s*\{)?\(?([A-Z])\)?\}?\.?")
_WITH_COMMAS = re.compile(r"(?<![\d,])\d{1,3}(?:,(?:\\!)?\d{3})+(?![\d,])")
_NUMBER_WORD = re.compile(
    r"zero|none|nothing|one|once|single|two|twice|pair|three|four|five|six|seven|eight|nine|ten|eleven|twel|thir|fif|"
    r"twenty|fort|hundred|thousand|million|half|quarter|dozen|\\?\bpi\b|\\infty|\\phi|infinite|infinity",
    re.IGNORECASE,
)
_BOUND = r"-?\d+(?:\.\d+)?"
_RANGE = re.compile(
    rf"(?:\bbetween\s|\brange\s?\(|\\?\[|^\W{{0,3}})\s*(?P<low>{_BOUND})\s?(?:,|and|to|\u2013|\.\.)\s?(?P<high>{_BOUND})"
    rf"[\])\s.$]*$|(?:\\pm|\u00b1|\+/-)\s?(?P<spread>{_BOUND})"
)
_LEAST_COUNTED = 12
_MAX_CHARACTERS = 20_000
_MAX_ALTERNATIVES = 300
"""Maximum number of characters of an answer that may be a short list."""


def stated_answers(text: str) -> Iterator[set[str]]:
    """Yield the different answers of a text: those in boxes, in `<answer>` tags, after `####`, after "answer is"."""
    text = text[-_MAX_CHARACTERS:]
    # Most messages contain none of the marks, and looking for a mark is much faster than the expressions.
    if "box" in text:
        yield {value for value in boxed(text) if value}
    if "<answer>" in text.lower():
        yield {value.strip() for value in _TAGGED.findall(text)}
    if "####" in text:
        yield {value.strip() for value in _MARKED.findall(text)}
    if "answer" in text.lower():
        yield {(value or letter).rstrip(".,") for value, letter in _STATED.findall(text)}


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
    return number_of(gold) is not None or _CHOICE.fullmatch(gold) is not None


def lists_alternatives(answer: str, gold: str) -> bool:
    """Return whether an answer consists of two values or more, one of which is the gold answer, a single value."""
    if len(answer) > _MAX_ALTERNATIVES or number_of(answer) is not None or not is_single(gold):
        return False
    plain = _BRACKETED.sub(") ", _IN_A_SET.sub(r"\1", answer.strip(" .$")))
    if number_of(gold) is None and _LETTERS_IN_A_ROW.fullmatch(plain):
        return (_letter(gold) or " ") in plain
    wanted = _letter(gold) if number_of(gold) is None else number_of(gold)
    for text in (plain, _WITH_COMMAS.sub(lambda found: re.sub(r"\D", "", found[0]), plain)):
        parts = {part.strip(" ().$\\") for part in _SEPARATOR.split(text)} - {""}
        values = [number_of(part) if number_of(gold) is not None else _letter(part) for part in parts]
        if None not in values and len(set(values)) > 1 and wanted in values:
            return True
    return False


def is_range(answer: str, gold: float) -> bool:
    """Return whether an answer is a range of numbers around the gold number, such as "between 3 and 9"."""
    found = _RANGE.search(answer[:_MAX_ALTERNATIVES])
    if found is None:
        return False
    if found["spread"]:
        return number_of(found["spread"]) != 0
    low, high = number_of(found["low"]), number_of(found["high"])
    return low is not None and high is not None and low < gold < high


def counts_up(text: str) -> bool:
    """Return whether a text ends in a list of 12 or more consecutive whole numbers."""
    lists = [*_LIST.finditer(text[-_MAX_CHARACTERS:])]
    if not lists or len(text[-_MAX_CHARACTERS:]) - lists[-1].end() > 3:
        return False
    numbers = [float(number) for number in _NUMBER.findall(lists[-1][0])]
    return len(numbers) >= _LEAST_COUNTED and all(b - a == 1 for a, b in pairwise(numbers))


def lists_numbers(text: str, value: float) -> str:
    """Return the first list of 8 or more different numbers that contains `value`; '' if none does."""
    for found in _LIST.finditer(text[-_MAX_CHARACTERS:]):
        numbers = set(_NUMBER.findall(found[0]))
        if len(numbers) >= _LEAST_LISTED and any(float(number) == value for number in numbers):
            return found[0]
    return ""


def has_number(text: str, value: float) -> bool:
    """Return whether a number with this value occurs in a text."""
    return any(float(number) == value for number in _NUMBER.findall(text[-_MAX_CHARACTERS:]))


def lacks_number(text: str) -> bool:
    """Return whether a text contains neither a digit nor a word or symbol that may stand for a number."""
    return not any(map(str.isnumeric, text)) and not _NUMBER_WORD.search(text)


def _letter(text: str) -> str | None:
    found = _CHOICE.fullmatch(text)
    return found[1] if found else None
