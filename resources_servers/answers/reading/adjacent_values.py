r"""Joins adjacent values into one answer: `\boxed{1} or \boxed{2}`, or boxes on consecutive lines.

If the gold answer is a list, the values are compared with it as a list. Otherwise each of them must be correct.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from rollyard.resources_servers.answers.reading.extraction import Found

MAX_BETWEEN = 100
"""Maximum number of characters between two adjacent values."""
_BETWEEN = re.compile(
    r"""(?:
      [\s.,;:$&|*_()\[\]{}!/•–—-] | \\[()\[\],;:!\\{} ] | \\(?:quad|qquad|text|textbf|mbox)(?![a-zA-Z])
    | \b(?:and|or|but|maybe|perhaps|possibly|alternatively|also|either|even|another|other|one|is|the|are|it|could|might
        |may|be|first|second|third|solutions?|roots?|values?|case|option|else|vs|versus|guess(?:es)?|answer\s?\d|\d|y|o|e|et|ou|und|oder|и|или)\b(?!\s?=)
    | \bor,?\s+if\b[^.,\n]{1,40}, | \b[a-zA-Z](?:_\{?\w\}?)?\s?=(?!=) | 和 | 或者? | または | 또는
    )*""",
    re.VERBOSE | re.IGNORECASE,
)
_NAME = re.compile(r"(?<![a-zA-Z\\])([a-zA-Z](?:_\{?\w{1,9}\}?)?) *= *\$?$")
MAX_NAME_LENGTH = 20


def last_row(text: str, values: Iterable[tuple[int, Found]], between: re.Pattern[str] = _BETWEEN) -> Found | None:
    """Return the last of `values`, combined with those adjacent to it. `values` are (start position, value) pairs."""
    row = list[tuple[int, Found]]()
    for start, value in values:
        if row and not _adjacent(text, row[-1][1], start, between):
            row = []
        row.append((start, value))
    if not row:
        return None
    names = [_NAME.search(text, max(start - MAX_NAME_LENGTH, 0), start) for start, _ in row]
    named = [name[1] for name in names if name]
    texts = [value.text for _, value in row]
    if len(row) > 1 and len(set(named)) == len(row) and not any("=" in each for each in texts):
        texts = [f"{name}={each}" for name, each in zip(named, texts, strict=True)]
    return together(row[-1][1], texts)


def together(last: Found, texts: Iterable[str]) -> Found:
    """Return a copy of `last` whose values are `texts`, without duplicates."""
    parts = tuple(dict.fromkeys(texts))
    return replace(last, text=", ".join(parts), parts=parts if len(parts) > 1 else ())


def _adjacent(text: str, value: Found, start: int, between: re.Pattern[str]) -> bool:
    gap = start - value.end
    return value.whole and 0 <= gap <= MAX_BETWEEN and bool(between.fullmatch(text, value.end, start))
