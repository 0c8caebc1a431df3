"""Finds what a response states as its answers, and tells whether a text lists several answers or states none."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollyard.services.findings.answer_values import boxed, number_of

_TAGGED = re.compile(r"<answer>(.{1,200}?)</answer>", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(r"^#{4} *(\S[^\n]{0,99})", re.MULTILINE)
_STATED = re.compile(r"\banswer(?: is|:) *\$?(-?\d[\d,.]{0,30}|[A-Z])(?![\w-])")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LEAST_LISTED = 8
_LIST = re.compile(r"-?\d[\d.]*(?:\s{0,3}[\s,;/|]\s{0,3}(?:(?:or|and)\s{1,3})?-?\d[\d.]*){7,}")
_SEPARATOR = re.compile(r"\\lor|\\text\s*\{\s*(?:or|and)\s*\}|\bor\b|\band\b|[,;/|]|\s")
_CHOICE = re.compile(r"(?:\\text\s*\{)?\(?([A-Z])\)?\}?\.?")
_WITH_COMMAS = re.compile(r"(?<![\d,])\d{1,3}(?:,(?:\\!)?\d{3})+(?![\d,])")
_NUMBER_WORD = re.compile(
    r"zero|none|nothing|one|once|single|two|twice|pair|three|four|five|six|seven|eight|nine|ten|eleven|twel|thir|fif|"
    r"twenty|fort|hundred|thousand|million|half|quarter|dozen|\\?\bpi\b|\\infty|\\phi|infinite|infinity",
    re.IGNORECASE,
)
_MAX_CHARACTERS = 20_000
_MAX_ALTERNATIVES = 300
"""Maximum number of characters of an answer that may be a short list."""


def stated_answers(text: str) -> Iterator[set[str]]:
    """Yield the different answers of a text: those in boxes, in `<answer>` tags, after `####`, after "answer is"."""
    text = text[-_MAX_CHARACTERS:]
    # Most messages contain none of the marks, and looking for a mark is much faster than the expressions.
    if "\\boxed{" in text:
        yield {value for value in boxed(text) if value}
    if "<answer>" in text.lower():
        yield {value.strip() for value in _TAGGED.findall(text)}
    if "####" in text:
        yield {value.strip() for value in _MARKED.findall(text)}
    if "answer" in text:
        yield {value.rstrip(".,") for value in _STATED.findall(text)}


def last_stated(text: str) -> str:
    """Return the last answer in a box, in a tag or after `####`; '' if there is none."""
    found = [*boxed(text)] or _TAGGED.findall(text) or _MARKED.findall(text)
    return found[-1].strip() if found else ""


def is_single(gold: str) -> bool:
    """Return whether a gold answer is certainly one value: a number, or the letter of a choice."""
    return number_of(gold) is not None or _CHOICE.fullmatch(gold) is not None


def lists_alternatives(answer: str, gold: str) -> bool:
    """Return whether an answer consists of two values or more, one of which is the gold answer, a single value."""
    if len(answer) > _MAX_ALTERNATIVES or number_of(answer) is not None or not is_single(gold):
        return False
    plain = _WITH_COMMAS.sub(lambda found: re.sub(r"\D", "", found[0]), answer.strip(" .$"))
    parts = {part.strip(" ().$\\") for part in _SEPARATOR.split(plain)} - {""}
    values = [number_of(part) if number_of(gold) is not None else _letter(part) for part in parts]
    wanted = _letter(gold) if number_of(gold) is None else number_of(gold)
    return None not in values and len(set(values)) > 1 and wanted in values


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
