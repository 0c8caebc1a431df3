"""Selects the relevant part of a model's text, and defines the types that finders use.

A finder returns the last answer in its format, or None. It does not know the gold answer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

PIECE, OVERLAP = 8192, 512
"""A text is searched in pieces of `PIECE` characters. A match may extend up to `OVERLAP` characters past the end of its
piece."""
_THINKING_ENDS = re.compile(r"</(?:think|thinking)>", re.IGNORECASE)
_THINKING_BEGINS = re.compile(r"<(?:think|thinking)>", re.IGNORECASE)


_TURN = re.compile(
    r"<\|(?:im_end|return|im_start|user|assistant|system|endoftext|end_of_text|eot_id|eom_id|start_header_id|END_OF_TURN_TOKEN"
    r"|START_OF_TURN_TOKEN)\|>|<(?:/s|eos|end_of_turn|start_of_turn)>|\[/?INST\]|<\|start\|>user|<｜(?:User|Assistant|end▁of▁sentence)｜>"
)
"""Special tokens of chat templates that end a turn or open one."""
_TURN_SIGNS = ("<|", "</s>", "<eos>", "_of_turn>", "INST]", "<｜")
MAX_LABELS = 20
_ROLE = re.compile(r"(?:\s|<\|end_header_id\|>|(?:assistant|model|CHATBOT_TOKEN)\b)*")
_SPEAKER = re.compile(
    r"\n[ \t]*\n[ \t]*(?:#{1,4} ?)?(?:\*\*)?(?:"
    r"(?:User|Human|Question|Problem|Exercise|Q|Student)(?: ?\d{1,3})?(?:\*\*)?:"
    r"|#{2,4} ?(?:Instruction|Input|User|Human|Question|Problem)\b)"
    r"|\n(?:(?:User|Human):|#{2,4} ?(?:Instruction|Input|User|Human)\b)"
)
"""The labels with which a next turn or a next problem begins."""


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


def first_turn(text: str, answered: Callable[[str], bool]) -> str:
    """Return the model's own turn: `text` up to where it goes on with a turn of the user, or with a next problem.

    A label such as `Question:` also occurs within solutions. It ends the turn only if the text before it is `answered`.
    """
    reasoning: list[tuple[int, int]] | None = None
    if any(sign in text for sign in _TURN_SIGNS):
        begin, reasoning = 0, _reasoning(text)
        for token in scan(_TURN, text):
            role = _ROLE.match(text, begin, token.start())
            if role and role.end() < token.start() and not _is_within(reasoning, token.start()):
                text = text[: token.start()]
                break
            begin = token.end()
    for label in islice(scan(_SPEAKER, text), MAX_LABELS):
        reasoning = _reasoning(text) if reasoning is None else reasoning
        if not _is_within(reasoning, label.start()) and answered(text[: label.start()]):
            return text[: label.start()]
    return text


def _reasoning(text: str) -> list[tuple[int, int]]:
    """Return where blocks of reasoning begin and end. A block without an opening tag begins where the last one ends."""
    spans, end = list[tuple[int, int]](), 0
    for closing in _THINKING_ENDS.finditer(text):
        opening = _THINKING_BEGINS.search(text, end, closing.start())
        spans.append((opening.start() if opening else end, closing.end()))
        end = closing.end()
    return spans


def _is_within(spans: list[tuple[int, int]], position: int) -> bool:
    index = bisect_right(spans, position, key=itemgetter(0)) - 1
    return index >= 0 and position < spans[index][1]


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
