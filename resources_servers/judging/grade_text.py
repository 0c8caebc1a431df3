"""Removes the Markdown around a judge's grade, and detects grades that are quotations from the graded answer."""

from __future__ import annotations

import re
import unicodedata

_FENCE = re.compile(r"(`{3,}|~{3,})[\w-]*")
_EMPHASIS = re.compile(r"(?<!\w)(?:\*\*+|__+|`+)|(?:\*\*+|__+|`+)(?!\w)")
_BEFORE, _AFTER = " \t*_`#~\"'([", " \t*_`~\"'.,;:!)]"
"""Markdown and punctuation to remove around a grade. Question marks are kept, because they express doubt."""


def unfenced(text: str) -> str:
    """Return the content of the code block at the end of the text, or the text itself if there is no code block."""
    lines = text.strip().split("\n")
    end = lines[-1].strip()
    if end not in ("```", "~~~"):
        return text
    for number in range(len(lines) - 2, -1, -1):
        if (found := _FENCE.fullmatch(lines[number].strip())) and found[1] == end:
            return "\n".join(lines[number + 1 : -1])
    return text


def plain(line: str) -> str:
    """Return the line without emphasis, backticks and surrounding punctuation: `**Grade:** 4.` becomes `Grade: 4`."""
    return _EMPHASIS.sub("", line).lstrip(_BEFORE).rstrip(_AFTER)


def is_quoted(statement: str, response: str) -> bool:
    """Return whether the response contains the statement. Case, punctuation and spaces are ignored.

    A single word or a number must be a whole line, because every long answer contains a `5` somewhere.
    """
    if not _letters(statement):
        return statement in response
    if len(re.findall(r"\w+", statement)) > 1 and any(map(str.isalpha, statement)):
        return _letters(statement) in _letters(response)
    return _letters(statement) in {_letters(line) for line in response.split("\n")}


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
