"""Checks the brackets in an answer, and determines which kind of bracket encloses it."""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import normalized

_SIGNS = re.compile(r"^\s*--\s*\d|^-?[\d.,]+\s*'+$|=\s*-?[\d.,]+\s*'+$")
"""Stray signs: `--7` and `7'` are not accepted as 7."""
MAX_DEPTH = 10
"""Maximum nesting depth of brackets. Each level doubles the parser's run time."""


def bracket_error(answer: str) -> str | None:
    """Return what is wrong with the brackets, or None if they are valid."""
    depth = deepest = 0
    for character in answer:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if depth:
        return "the brackets are not balanced"
    if _SIGNS.search(answer):
        return "a number has a stray sign: a double minus or an apostrophe"
    return f"the brackets are nested {deepest} deep; the limit is {MAX_DEPTH}" if deepest > MAX_DEPTH else None


def half_open(text: str) -> bool:
    """Return whether `text` is in half-open brackets, as `[1, 2)` and `(1, 2]` are."""
    text = normalized(text)
    return text[:1] + text[-1:] in ("[)", "(]")


def brackets(text: str) -> str:
    """Return the bracket that encloses the whole `text`: `(`, `[`, `{`, or an empty string."""
    text = normalized(text).replace(r"\{", "⟨").replace(r"\}", "⟩")
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([⟨") - (character in ")]⟩")
        if depth <= 0 and position < len(text) - 1:
            return ""
    return {"(": "(", "[": "[", "⟨": "{"}.get(text[:1], "") if text[-1:] in ")]⟩" else ""
