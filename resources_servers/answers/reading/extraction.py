"""Selects the relevant part of a model's text, and defines the types that finders use.

A finder returns the last answer in its format, or None. It does not know the gold answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

PIECE, OVERLAP = 8192, 512
"""A text is searched in pieces of `PIECE` characters. A match may extend up to `OVERLAP` characters past the end of its
piece."""
_THINKING_ENDS = re.compile(r"</(?:think|thinking)>", re.IGNORECASE)
_THINKING_BEGINS = re.compile(r"<(?:think|thinking)>", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """An answer as the model wrote it."""

    text: str
    method: str
    """The method that found the answer, such as `boxed`."""
    end: int
    """End position in the searched text."""
    whole: bool = True
    """False if the text breaks off inside the answer."""
    parts: tuple[str, ...] = ()
    """The individual values if the answer has several."""
    every: tuple[str, ...] = ()
    """All values in this format anywhere in the text. They are needed for lists whose items are boxed separately."""


Finder = Callable[[str], "Found | None"]


def without_reasoning(text: str) -> str:
    """Return `text` without the model's reasoning. The result is empty if the reasoning is unfinished."""
    end = 0
    for match in _THINKING_ENDS.finditer(text):
        end = match.end()
    # Templates may put the opening tag in the prompt, so only the closing tag is reliable.
    rest = text[end:]
    start = _THINKING_BEGINS.search(rest)
    return rest[: start.start()] if start else rest


def cut(text: str, stops: Sequence[str]) -> str:
    """Cut `text` at the first stop string, as an engine that supports stop strings does."""
    positions = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(positions)] if positions else text


def scan(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern, searching the text piece by piece. Matches longer than `OVERLAP` may be missed.

    A search through the whole of a long text would block all other threads, including the event loop's.
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
    return next((found for finder in finders if (found := finder(text))), None)
