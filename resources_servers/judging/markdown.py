"""Removes the Markdown around a judge's grade, and recognizes a grade that is a quotation of the graded answer."""

from __future__ import annotations

import re
import unicodedata

_FENCE = re.compile(r"(`{3,}|~{3,})[\w-]*")
_EMPHASIS = re.compile(r"(?<!\w)(?:\*\*+|__+|`+)|(?:\*\*+|__+|`+)(?!\w)")
_BEFORE, _AFTER = " \t*_`#~\"'([", " \t*_`~\"'.,;:!)]"
"""Marks and punctuation around a grade. A question mark is not among them: it expresses doubt."""


def unfenced(text: str) -> str:
    """Return the content of the code block that ends the text; the text itself if it does not end with one."""
    lines = text.strip().split("\n")
    end = lines[-1].strip()
    if end not in ("```", "~~~"):
        return text
    for number in range(len(lines) - 2, -1, -1):
        if (found := _FENCE.fullmatch(lines[number].strip())) and found[1] == end:
            return "\n".join(lines[number + 1 : -1])
    return text


def plain(line: str) -> str:
    """Return the line without emphasis, code marks, and punctuation around it: `**Grade:** 4.` is `Grade: 4`."""
    return _EMPHASIS.sub("", line).lstrip(_BEFORE).rstrip(_AFTER)


def is_quoted(statement: str, response: str) -> bool:
    """Return True if the response contains the statement, apart from case, punctuation, spaces and invisible marks.

    A single word or a number counts only as a whole line: every long answer contains a `5` somewhere.
    """
    if not _letters(statement):
        return statement in response
    if len(re.findall(r"\w+", statement)) > 1 and any(map(str.isalpha, statement)):
        return _letters(statement) in _letters(response)
    return _letters(statement) in {_letters(line) for line in response.split("\n")}


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
