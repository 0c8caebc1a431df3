"""Finding the final answer in a model's text: which part counts as said, and the forms in which an answer is given.

Every finder returns the last answer of its form, or None. Nothing here knows whether an answer is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_CHARACTERS = 3000
"""Of a box. Without bounds, a text of opening boxes would be searched to its end from each of them."""
MOST_BOXES = 50
"""At the end of a text, that are looked at."""
_THINKING_ENDS = re.compile(r"</(?:think|thinking)>", re.IGNORECASE)
_THINKING_BEGINS = re.compile(r"<(?:think|thinking)>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_IN_A_ROW = re.compile(r"[ \t$,;]*(?:\\text *\{)?[ \t]*(?:and|or)?[ \t]*\}?[ \t$]*(?:[a-zA-Z] *= *)?")
_BARE_BOX = re.compile(r"[^\s$\\{}.,;]+")
_HASHES = re.compile(r"####[ \t]*")
_TAG = (re.compile("<answer>", re.IGNORECASE), re.compile("</answer>", re.IGNORECASE))
_MINERVA = (
    re.compile(r"final answer is:?", re.IGNORECASE),
    re.compile(r"\.?\s{0,9}I hope it is correct", re.IGNORECASE),
)
_IS = re.compile(r"\banswer(?:\*\*)?(?:\s+is(?:\*\*)?:?|\s*:)(?:\*\*)?\s*", re.IGNORECASE)
_LETTER_A = re.compile(r"^A:[ \t]*", re.MULTILINE)
_DOLLARS = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$(.{1,2000}?)(?<!\\)\$|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]", re.DOTALL
)
_NUMBER = re.compile(
    r"(?<![\da-zA-Z_.,/])(?:-\s?)?\$?-?(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d+)?%?|(?<![\da-zA-Z_.])-?\.\d+"
)
_SENTENCE_END = re.compile(r"\.(?:\s|$)")


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


Finder = Callable[[str], "Found | None"]


def said(text: str) -> str:
    """`text` without the model's thinking; empty when it never came out of it."""
    ends = [match.end() for match in _THINKING_ENDS.finditer(text)]
    # Templates may put the opening tag into the prompt: only the closing one is sure to be there.
    rest = text[ends[-1] :] if ends else text
    begun = _THINKING_BEGINS.search(rest)
    return rest[: begun.start()] if begun else rest


def cut(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops`, as an engine that honours them would have ended it."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def boxed(text: str) -> Found | None:
    r"""The content of the last `\boxed{...}`, braces balanced; also `\fbox{...}` and `\boxed 5`.

    Boxes in a row (`\boxed{1} or \boxed{2}`) are one answer, `1, 2`: naming several does not help.
    """
    found, row = None, list[str]()
    for match in list(_BOX.finditer(text))[-MOST_BOXES:]:
        if found is not None and match.start() < found.end:  # a box in a box says the same thing once
            continue
        box = _box(text, match.end())
        # `\boxed{...}` is the prompt's own wording.
        if box is None or (box.text and not box.text.strip(". ")):
            continue
        if found is None or not found.whole or not _IN_A_ROW.fullmatch(text, found.end, match.start()):
            row = []
        if box.text not in row:
            row.append(box.text)
        found = Found(", ".join(row), "boxed", box.end, box.whole)
    return found


def _box(text: str, start: int) -> Found | None:
    if text[start : start + 1] == "{":
        end = closing(text, start)
        if end is None:
            return Found("unclosed", "boxed", start, whole=False)
        inner = text[start + 1 : end].strip()
        nested = _BOX.match(inner)
        if nested and closing(inner, nested.end()) == len(inner) - 1:
            inner = inner[nested.end() + 1 : -1].strip()
        return Found(inner, "boxed", end + 1)
    bare = _BARE_BOX.match(text, start)
    return Found(bare.group(), "boxed", bare.end()) if bare else None


def closing(text: str, opening: int) -> int | None:
    """Where the brace at `opening` is closed; None when it is not, or only far behind."""
    depth, place, end = 0, opening, min(len(text), opening + MOST_CHARACTERS)
    while place < end:
        if text[place] == "\\":
            place += 1
        elif text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return place
        place += 1
    return None


def hashes(text: str) -> Found | None:
    """`#### 18`, GSM8K's own form."""
    return _behind(_HASHES, text, "hashes")


def tagged(text: str) -> Found | None:
    """`<answer>18</answer>`."""
    return _between(*_TAG, text, "answer_tag")


def minerva(text: str) -> Found | None:
    """`Final Answer: The final answer is $18$. I hope it is correct.`"""
    return _between(*_MINERVA, text, "final_answer")


def phrased(text: str) -> Found | None:
    """`The answer is 18.` and `Answer: 18`, up to the end of the sentence."""
    return _behind(_IS, text, "answer_is") or _behind(_LETTER_A, text, "answer_is")


def dollars(text: str) -> Found | None:
    """The last formula between dollars or LaTeX brackets."""
    last = None
    for match in _DOLLARS.finditer(text):
        last = match
    if last is None:
        return None
    return Found(next(group for group in last.groups() if group is not None).strip(), "last_formula", last.end())


def number(text: str) -> Found | None:
    """The last number."""
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    return Found(last.group().replace(" ", ""), "last_number", last.end()) if last else None


def first_of(finders: Sequence[Finder], text: str) -> Found | None:
    """What the first finder that finds anything finds."""
    return next((found for finder in finders if (found := finder(text))), None)


def _between(opening: re.Pattern[str], ending: re.Pattern[str], text: str, method: str) -> Found | None:
    """What stands before the last ending, behind the opening next to it."""
    last = None
    for match in ending.finditer(text):
        last = match
    if last is None:
        return None
    openings = [match.end() for match in opening.finditer(text, 0, last.start())]
    return Found(text[openings[-1] : last.start()].strip(), method, last.end()) if openings else None


def _behind(opening: re.Pattern[str], text: str, method: str) -> Found | None:
    """What stands behind the last opening that has something behind it, up to the end of the line or sentence."""
    for match in reversed(list(opening.finditer(text))):
        line = text[match.end() :].partition("\n")[0]
        end = _SENTENCE_END.search(line) if method == "answer_is" else None
        found = line[: end.start()] if end else line
        if found.strip():
            return Found(found.strip().strip("*").strip(), method, match.end() + len(found.rstrip()))
    return None
