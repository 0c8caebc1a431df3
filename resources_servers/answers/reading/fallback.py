"""Finds the answer in a text that does not mark one: the last formula or the last number."""

from __future__ import annotations

import re
from collections import deque

from rollyard.resources_servers.answers.reading.adjacent_values import last_row, together
from rollyard.resources_servers.answers.reading.extraction import Found, scan
from rollyard.resources_servers.answers.reading.formulas import formulas

MAX_FORMULAS = 20
"""Maximum number of formulas that are considered, counted from the end of the text."""
_NUMBER = re.compile(
    r"(?<![\da-zA-Z_.,/])(?:-\s?)?\$?-?(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d+)?(?:%|π|√\(?\d+\)?)?|(?<![\da-zA-Z_.])-?\.\d+"
    r"|(?<![\da-zA-Z_.,/])-?\d*√\(?\d+\)?"
)

_OR = r"\b(?:or|and|maybe|perhaps|possibly|alternatively)\b(?: (?:maybe|perhaps|possibly|even|also))?"
_ALTERNATIVE = re.compile(rf"(?: [^\W\d_]+){{0,2}},? ?\(?{_OR} ?(?:[a-z] ?= ?)?\$?")
_DENIED = re.compile(r"\b(?:not|rather than|instead of) ?\$?$", re.IGNORECASE)
_JOINED = re.compile(rf"[ ,(]*{_OR}[ (]*")


def dollars(text: str) -> Found | None:
    """Return the last formula between dollar signs or LaTeX brackets, combined with the formulas adjacent to it."""
    last = deque(formulas(text), MAX_FORMULAS)
    return last_row(text, [(each.start, Found(each.text, "last_formula", each.end)) for each in last], _JOINED)


def number(text: str) -> Found | None:
    """Return the last number, together with the number before it if the two are alternatives, as in `18 or 19`."""
    last = deque(scan(_NUMBER, text), 3)
    if len(last) > 1 and _DENIED.search(text, max(last[-1].start() - 20, 0), last[-1].start()):
        last.pop()
    if not last:
        return None
    found = Found(last[-1].group().replace(" ", ""), "last_number", last[-1].end())
    before = last[-2] if len(last) > 1 else None
    if before and _ALTERNATIVE.fullmatch(text, before.end(), last[-1].start()):
        return together(found, [before.group().replace(" ", ""), found.text])
    return found
