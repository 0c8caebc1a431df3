r"""Finds the formulas in a text (`$...$`, `$$...$$`, `\(...\)` and `\[...\]`) in a single pass from left to right.

A dollar sign may also denote money: `$18 and $20` does not contain a formula.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 2000
"""Maximum length of a formula. If a delimiter is not closed within this length, it does not start a formula."""
MASK = "\ue000"
"""Replaces each character of a formula in masked text."""
_DELIMITER = re.compile(r"\\[\\$()\[\]]|\$\$?")
_ENDINGS = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}


@dataclass(frozen=True)
class Formula:
    """A formula, and where it starts and ends in the text, including its delimiters."""

    text: str
    start: int
    end: int


def formulas(text: str) -> Iterator[Formula]:
    """Yield the formulas in order, in time linear in the length of `text`."""
    sign, start, begin = "", 0, 0
    for token in _DELIMITER.finditer(text):
        found, position = token.group(), token.start()
        if found in ("\\\\", r"\$"):
            continue
        if sign and (found == _ENDINGS[sign] or (sign, found) == ("$", "$$")):
            if _is_formula(text, sign, begin, position):
                end = position + (1 if sign == "$" else len(found))
                yield Formula(text[begin:position].strip(), start, end)
                sign = ""
                if end < token.end():  # the second dollar of `$x$$y$` opens the next formula
                    sign, start, begin = "$", end, end + 1
                continue
            if sign != "$":
                sign = ""
                continue
        # Delimiters do not nest: an opening delimiter inside a formula means that the previous one was not closed.
        if found in _ENDINGS:
            sign, start, begin = found, position, token.end()


def _is_formula(text: str, sign: str, begin: int, end: int) -> bool:
    if not 0 < end - begin <= MAX_CHARACTERS:
        return False
    inner = text[begin:end]
    if not inner.strip() or (sign == "$" and "\n\n" in inner):
        return False
    return not (sign == "$" and inner[0].isdigit() and text[end + 1 : end + 2].isdigit())


def masked(text: str, found: list[Formula]) -> str:
    """Replace each character of the formulas in `text` with MASK, so all positions stay the same."""
    parts, position = list[str](), 0
    for formula in found:
        parts += [text[position : formula.start], MASK * (formula.end - formula.start)]
        position = formula.end
    return "".join([*parts, text[position:]])
