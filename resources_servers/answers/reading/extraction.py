"""Finding the final answer in a model's text: which part counts as said, and the forms in which an answer is given.

Every finder returns the last answer of its form, or None. Nothing here knows whether an answer is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

PIECE, OVERLAP = 8192, 512
"""Characters that are searched at once, and how far a match may reach behind them."""
_THINKING_ENDS = re.compile(r"</(?:think|thinking)>", re.IGNORECASE)
_THINKING_BEGINS = re.compile(r"<(?:think|thinking)>", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """An answer as the model wrote it."""

    text: str
    method: str
    """The form it was given in."""
    end: int
    """Where it ends in the text that was searched."""
    whole: bool = True
    """False when the form was begun and not ended: the text breaks off inside the answer."""
    parts: tuple[str, ...] = ()
    """The values that it names, when there are several."""
    every: tuple[str, ...] = ()
    """What the text gives in this form all in all, for lists whose items are given one by one."""


Finder = Callable[[str], "Found | None"]


def without_reasoning(text: str) -> str:
    """`text` without the model's thinking; empty when it never came out of it."""
    end = 0
    for match in _THINKING_ENDS.finditer(text):
        end = match.end()
    # Templates may put the opening tag into the prompt: only the closing one is sure to be there.
    rest = text[end:]
    begun = _THINKING_BEGINS.search(rest)
    return rest[: begun.start()] if begun else rest


def cut(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops`, as an engine that honours them would have ended it."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def scan(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of a pattern that needs at most `OVERLAP` characters, found piece by piece.

    One search through a long text would keep all other threads waiting, that of the event loop among them.
    """
    place = 0
    while place < len(text):
        limit = place + PIECE
        for match in pattern.finditer(text, place, limit + OVERLAP):
            if match.start() >= limit:
                break
            yield match
            place = match.end()
        place = max(place, limit)


def first_of(finders: Sequence[Finder], text: str) -> Found | None:
    """What the first finder that finds anything finds."""
    return next((found for finder in finders if (found := finder(text))), None)
