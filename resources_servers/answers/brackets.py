"""The brackets around an answer and in it: what kind of thing it is, and whether it is one at all."""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import normalized

_SIGNS = re.compile(r"^\s*--\s*\d|^-?[\d.,]+\s*'+$|=\s*-?[\d.,]+\s*'+$")
"""`--7` and `7'` are no spellings of 7."""
DEEPEST = 10
"""Brackets in brackets; the parser's time doubles with each."""


def bracket_error(answer: str) -> str | None:
    """What is wrong with the brackets; None when nothing is."""
    depth = deepest = 0
    for character in answer:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if depth:
        return "its brackets are not balanced"
    if _SIGNS.search(answer):
        return "a number with a sign that says nothing of it"
    return f"its brackets are nested {deepest} deep, over {DEEPEST}" if deepest > DEEPEST else None


def half_open(text: str) -> bool:
    """True for what looks like `[1, 2)` or `(1, 2]`."""
    text = normalized(text)
    return text[:1] + text[-1:] in ("[)", "(]")


def brackets(text: str) -> str:
    """The bracket that holds all of `text`: `(`, `[`, `{`, or nothing."""
    text = normalized(text).replace(r"\{", "⟨").replace(r"\}", "⟩")
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([⟨") - (character in ")]⟩")
        if depth <= 0 and place < len(text) - 1:
            return ""
    return {"(": "(", "[": "[", "⟨": "{"}.get(text[:1], "") if text[-1:] in ")]⟩" else ""
