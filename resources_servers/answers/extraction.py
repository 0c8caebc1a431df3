"""What finders of answers share: the type `FoundAnswer`, the part of a model's text that counts, formulas in it.

A finder returns the last answer in its format, or None. It does not know the gold answer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

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


class FoundAnswer(NamedTuple):
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


Finder = Callable[[str], "FoundAnswer | None"]


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
    """Return the model's own turn: `text` up to where it goes on with a turn of the user, or with a next problem. A
    label such as `Question:` also occurs within solutions. It ends the turn only if the text before it is
    `answered`.
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


def first_of(finders: Sequence[Finder], text: str) -> FoundAnswer | None:
    return next((found for finder in finders if (found := finder(text))), None)


_RETRACTION = re.compile(
    r"""(?<=[.!?\n—–$}),;-])[\s*_]{0,4}(?:
        (?:(?:hmm+|wait|oops|sorry|actually|hold\ on|ah|oh)[,.…!—–\s-]{1,4}){1,4}
          (?:no\b|scratch\ that|(?:it|that)(?:['’]s|\ is|\ should\ be)\ *(?=[-$\\*\d])
            |I\ meant|that(?:['’]s|\ is|\ was)\ (?:wrong|incorrect|not)
            |I\ (?:made|was|mis)|the\ (?:correct\ |right\ |final\ )?answer\ (?:is|should\ be))
      | no,\ (?:wait|sorry|actually|that['’]s|it['’]s|the\ (?:correct\ |right\ )?answer\ is)
      | scratch\ that | correction[:,.] | my\ mistake | I\ (?:made\ an?|have\ made\ an?)\ (?:mistake|error)
      | (?:that|this)(?:['’]s|\ is|\ was)\ (?:wrong|incorrect|not\ (?:right|correct)|a\ mistake)
    )""",
    re.VERBOSE | re.IGNORECASE,
)


def after_last_retraction(text: str) -> str:
    """Return the text after the last retraction, such as `Wait, no`: every answer before it is retracted."""
    start = 0
    for match in scan(_RETRACTION, text):
        start = match.end()
    return text[start:].lstrip(",;:—– ") if start else text


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


def last_row(
    text: str, values: Iterable[tuple[int, FoundAnswer]], between: re.Pattern[str] = _BETWEEN
) -> FoundAnswer | None:
    r"""Return the last of `values`, combined with those adjacent to it: `\boxed{1} or \boxed{2}`, or boxes on
    consecutive lines. `values` are (start position, value) pairs.

    If the gold answer is a list, the values are compared with it as a list. Otherwise each of them must be correct.
    """
    row = list[tuple[int, FoundAnswer]]()
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


def together(last: FoundAnswer, texts: Iterable[str]) -> FoundAnswer:
    """Return a copy of `last` whose values are `texts`, without duplicates."""
    parts = tuple(dict.fromkeys(texts))
    return last._replace(text=", ".join(parts), parts=parts if len(parts) > 1 else ())


def _adjacent(text: str, value: FoundAnswer, start: int, between: re.Pattern[str]) -> bool:
    gap = start - value.end
    return value.whole and 0 <= gap <= MAX_BETWEEN and bool(between.fullmatch(text, value.end, start))


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
    r"""Yield the formulas (`$...$`, `$$...$$`, `\(...\)` and `\[...\]`) in order, in time linear in the length of
    `text`.

    A dollar sign may also denote money: `$18 and $20` does not contain a formula.
    """
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
