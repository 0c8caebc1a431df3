"""Parses multiple-choice answers: `(C)`, `\\textbf{(C) }15`, `Option C`, `C. 15`."""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import normalized

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_CHOICE = re.compile(
    r"(?:(?:the )?(?:correct )?(?:option|choice|answer)(?: is)?:? *)?"
    r"(?:\( *([A-Z]) *\)|([A-Z]) *[).:](?= |$|\\|[\d$-])|([A-Z])$) *[.:]? *(.*)",
    re.IGNORECASE | re.DOTALL,
)
_ANOTHER = re.compile(r"\([A-Z]\)|\b(?:or|not|and|but|maybe|either)\b|\b[A-Z]\)|^, *[A-Z]$|\?")


def choice(text: str) -> tuple[str, str] | None:
    """Return the chosen letter and the value after it, or None if the answer does not choose exactly one option."""
    bare = _TEXT.sub(r"\1", normalized(text)).strip()
    match = _CHOICE.fullmatch(bare)
    if match is None or not (letter := match[1] or match[2] or match[3]).isupper() or _ANOTHER.search(match[4]):
        return None
    return letter, match[4].strip()
