"""Splits a formula at relations, commas, `and` and `or`, except inside brackets."""

from __future__ import annotations

import re
from collections.abc import Iterator

RELATIONS = re.compile(r"=|<|>|\\(?:le|ge|ne|in|approx|simeq|equiv)(?![a-zA-Z])")
_EQUALS = re.compile(r"=|\\(?:approx|simeq)(?![a-zA-Z])")
_ITEMS = re.compile(r";|,(?!\d{3}(?!\d))|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])")
_STEP = re.compile(r"\\[{}]|\\[a-zA-Z]+|.", re.DOTALL)


def parts(text: str) -> list[str]:
    """Return the items of a list such as `2, 3 and 4`. A text that is not a list is a single item."""
    return [item for _, item in _split(text, _ITEMS) if item]


def sides(text: str) -> list[str]:
    """Return the sides of all equations and approximate equations in `text`."""
    return [side for _, side in _split(text, _EQUALS)]


def links(text: str) -> list[tuple[str, str]]:
    """Return the sides of a chain of relations, each with the sign before it. The first sign is empty."""
    return _split(text, RELATIONS)


def _split(text: str, at: re.Pattern[str]) -> list[tuple[str, str]]:
    found, start, sign = [], 0, ""
    outside = set(_outside(text))
    for match in at.finditer(text):
        if match.start() in outside:
            found.append((sign, text[start : match.start()].strip()))
            start, sign = match.end(), match.group().strip()
    return [*found, (sign, text[start:].strip())]


def _outside(text: str) -> Iterator[int]:
    """Yield the positions that are not inside brackets or braces."""
    depth = 0
    for step in _STEP.finditer(text):
        if step.group() in ("(", "[", "{", r"\{"):
            depth += 1
        elif step.group() in (")", "]", "}", r"\}"):
            depth -= 1
        elif depth <= 0:
            yield step.start()
