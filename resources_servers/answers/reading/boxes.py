r"""Finds boxed answers: `\boxed{...}`, `\boxed 5` and `\fbox{...}`.

The answer consists of the last box, the boxes adjacent to it, and an alternative before it (`5 or \boxed{6}`). A policy
therefore gains nothing by giving several answers.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from rollyard.resources_servers.answers.reading.adjacent_values import last_row, together
from rollyard.resources_servers.answers.reading.extraction import Found

MAX_CHARACTERS = 3000
"""Maximum length of a box. Without a limit, each unclosed box would be searched to the end of the text."""
MAX_BOXES = 50
"""Maximum number of boxes that are considered, counted from the end of the text."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_DENIED = re.compile(r"\b(?:not|rather than|instead of)[ $*({\[\\]{0,9}$", re.I)
_BARE_BOX = re.compile(r"[^\s$\\{}.,;]+")
_OR_BEFORE = re.compile(
    r"(?:^|\.\s|\n|\b(?:either|answer is|answer:|maybe|perhaps|possibly|it is|it['’]s))\s*\$?(-?\d[\d.,/]*)\$?,? +\(?"
    r"(?:or|maybe|perhaps|possibly) +(?:(?:maybe|perhaps|possibly) +)?(?:\$|\\[(\[]|\*\*)?\s*$",
    re.I,
)
r"""Matches a value and an `or` before a box, but not `which is $13+15$, or \boxed{28}`, where the box restates the
value."""
_BESIDE = 150
"""Number of characters before a box that are searched for a different value."""
_MAX_DEPTH = 5


def boxed(text: str) -> Found | None:
    r"""Return the last box, combined with the boxes adjacent to it: `1, 2` for `\boxed{1} or \boxed{2}`."""
    found = list(_boxes(text))
    last = last_row(text, found)
    if last is None or not last.whole:
        return last
    first = found[-1][0] if not last.parts else found[-len(last.parts)][0]
    beside = [*_before(text, first), *(last.parts or (last.text,))]
    alone = [each.text for _, each in found if each.whole]
    return replace(together(last, beside), every=tuple(dict.fromkeys(alone)))


def _boxes(text: str) -> Iterator[tuple[int, Found]]:
    end = 0
    for match in deque(_BOX.finditer(text), MAX_BOXES):
        if match.start() < end:  # a nested box repeats the same value
            continue
        if _DENIED.search(text, max(match.start() - _BESIDE, 0), match.start()):
            continue
        box = _box(text, match.end())
        # A literal `\boxed{...}` is a quotation from the prompt.
        if box is None or (box.text and not box.text.strip(". ")):
            continue
        end = box.end
        yield match.start(), box


def _box(text: str, start: int) -> Found | None:
    if text[start : start + 1] == "{":
        end = closing(text, start)
        if end is None:
            return Found("unclosed", "boxed", start, whole=False)
        return Found(_unnested(text[start + 1 : end].strip()), "boxed", end + 1)
    bare = _BARE_BOX.match(text, start)
    return Found(bare.group(), "boxed", bare.end()) if bare else None


def _unnested(inner: str) -> str:
    """Remove any boxes and braces that enclose the whole content."""
    for _ in range(_MAX_DEPTH):
        nested = _BOX.match(inner)
        start = nested.end() if nested else 0
        if inner[start : start + 1] != "{" or closing(inner, start) != len(inner) - 1:
            return inner
        inner = inner[start + 1 : -1].strip()
    return inner


def closing(text: str, opening: int) -> int | None:
    """Return the position of the brace that closes the one at `opening`, or None if it is not within the limit."""
    depth, position, end = 0, opening, min(len(text), opening + MAX_CHARACTERS)
    while position < end:
        if text[position] == "\\":
            position += 1
        elif text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def _before(text: str, start: int) -> list[str]:
    r"""Return the alternative before a box, such as 5 in `5 or \boxed{6}`."""
    match = _OR_BEFORE.search(text, max(start - _BESIDE, 0), start)
    return [match[1]] if match else []
