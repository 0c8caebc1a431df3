"""Selects the relevant part of a model's text, and defines finders and their result.

A finder returns the last answer in its format, or None. It does not know the gold answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

PIECE, OVERLAP = 8192, 512
"""Number of characters that are searched at once, and how far a match may extend beyond them."""
_THINKING_ENDS = re.compile(r"</(?:think|thinking)>", re.IGNORECASE)
_THINKING_BEGINS = re.compile(r"<(?:think|thinking)>", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """An answer in the model's own spelling."""

    text: str
    method: str
    """The format of the answer, such as `boxed`."""
    end: int
    """End position in the searched text."""
    whole: bool = True
    """False if the text is truncated inside the answer."""
    parts: tuple[str, ...] = ()
    """The answer's values if there are several."""
    every: tuple[str, ...] = ()
    """All values of this format in the text, for lists whose items are given separately."""


Finder = Callable[[str], "Found | None"]


def without_reasoning(text: str) -> str:
    """Return `text` without the model's reasoning; empty if the reasoning is unfinished."""
    end = 0
    for match in _THINKING_ENDS.finditer(text):
        end = match.end()
    # Templates may put the opening tag in the prompt, so only the closing tag is reliable.
    rest = text[end:]
    start = _THINKING_BEGINS.search(rest)
    return rest[: start.start()] if start else rest


def cut(text: str, stops: Sequence[str]) -> str:
    """Cut `text` at the first stop string, like an engine that supports them."""
    positions = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(positions)] if positions else text


def scan(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern, searching piece by piece; a match may be at most `OVERLAP` characters long.

    A single search through a long text would block all other threads, including the event loop's.
    """
    position = 0
    while position < len(text):
        limit = position + PIECE
        for match in pattern.finditer(text, position, limit + OVERLAP):
            if match.start() >= limit:
                break
            yield match
            position = match.end()
        position = max(position, limit)


def first_of(finders: Sequence[Finder], text: str) -> Found | None:
    """Return the result of the first finder that finds an answer."""
    return next((found for finder in finders if (found := finder(text))), None)
