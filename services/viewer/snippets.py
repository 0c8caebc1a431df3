"""The parts of rollouts that a text search matched. A row is read and searched once for each text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.services.io.lines import line_at
from rollyard.services.viewer.api_records import Event, Snippet
from rollyard.services.viewer.caches import PacedCache
from rollyard.services.viewer.conversation import events_of
from rollyard.services.viewer.text_search import forms
from rollyard.services.viewer.untrusted_values import as_row

_MAX_KEPT = 2000
_MAX_PAGE_BYTES = 48 << 20
"""Maximum size of the rows that are read for one page. Further rows have no snippet."""
BEFORE, AFTER = 60, 140
"""Number of characters that are shown before and after a match."""
_LONGEST = 200
"""Number of characters of the match that are shown."""
_SPACE = re.compile(r"\s+")


class Snippets:
    """The snippets of one file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = PacedCache[tuple[Snippet | None, int]](_MAX_KEPT)

    def of(self, offsets: Sequence[int], text: str) -> tuple[Snippet | None, ...]:
        """Return what the text matches in each of the rows that begin at `offsets` (negative: no row).

        Raises OSError if the file cannot be read.
        """
        return tuple(self._each(offsets, text)) if text else ()

    def clear(self) -> None:
        """Forget the snippets, because the file was changed or is being closed."""
        self._kept.clear()

    def _each(self, offsets: Sequence[int], text: str) -> Iterator[Snippet | None]:
        budget = _MAX_PAGE_BYTES
        for offset in offsets:
            if offset < 0 or budget <= 0:
                yield None
                continue
            key = offset, text
            found, size = self._kept.get(key, None, lambda offset=offset: self._read(offset, text), final=True)  # type: ignore[misc]
            budget -= size
            yield found

    def _read(self, offset: int, text: str) -> tuple[Snippet | None, int]:
        line = line_at(self._path, offset)
        row = as_row(line)
        return None if row is None else snippet_of(row, text), len(line)


def snippet_of(row: Mapping[str, Any], text: str) -> Snippet | None:
    """Return the first event of the conversation that contains `text`, ignoring case, or else the first other field.

    None if neither contains it as it is shown; the search also finds texts that are written in a different way.
    """
    if not text:
        return None
    events = events_of(row)
    found = [(index, span) for index, event in enumerate(events) if (span := _span(event.text, text))]
    if not found:  # JSON that is indented to be read, as in the arguments of a call
        spaced = _with_any_space(text)
        found = [(index, match.span()) for index, event in enumerate(events) if (match := spaced.search(event.text))]
    if found:
        index, (at, end) = found[0]
        event, others = events[index], len(found) - 1
        parts = _around(event.text, at, end - at)
        name = event.name or _called_by(events, event)
        return Snippet(event=index, turn=event.turn, place=event.speaker, name=name, others=others, **parts)
    return next(_in_fields(row, text), None)


def _called_by(events: Sequence[Event], event: Event) -> str:
    """Return the name of the tool whose result the event is, else ''."""
    calls = (one.name for one in events if one.speaker == "call" and one.call == event.call)
    return next(calls, "") if event.speaker == "result" else ""


def _span(text: str, part: str) -> tuple[int, int] | None:
    """Return where `part` begins and ends in `text`, ignoring case. The page uses the same rule."""
    lowered, wanted = text.lower(), part.lower()
    if len(lowered) != len(text) or len(wanted) != len(part):  # lower case would move positions
        lowered, wanted = text, part
    at = lowered.find(wanted)
    return None if at < 0 else (at, at + len(part))


def _with_any_space(text: str) -> re.Pattern[str]:
    """Return a pattern for the text with any white space between its letters."""
    return re.compile(r"\s*".join(map(re.escape, "".join(text.split()))) or "(?!)", re.IGNORECASE)


def _in_fields(row: Mapping[str, Any], text: str) -> Iterator[Snippet]:
    """Yield the fields that contain the text as JSON, such as `"reward":10.9`."""
    wanted = forms(text)
    for key, value in row.items():
        line = orjson.dumps({key: value}, option=orjson.OPT_NON_STR_KEYS)[1:-1]
        lowered = line.lower()
        for form in wanted:
            at = lowered.find(form)
            if at >= 0:
                before, shown = line[:at].decode(errors="replace"), line[at:].decode(errors="replace")
                matched = len(form.decode(errors="replace"))
                parts = _around(before + shown, len(before), matched)
                yield Snippet(event=None, turn=0, place=key, name="", others=0, **parts)
                break


def _around(text: str, at: int, length: int) -> dict[str, str]:
    """Return the match and the text around it, on one line."""
    start, end = max(0, at - BEFORE), at + min(length, _LONGEST)
    before = _one_line(text[start:at])
    after = _one_line(text[end : end + AFTER])
    return {
        "before": ("…" if start else "") + before,
        "match": _one_line(text[at:end]),
        "after": after + ("…" if end + AFTER < len(text) else ""),
    }


def _one_line(text: str) -> str:
    """Return the text with each run of white space as one space, also at its ends."""
    return _SPACE.sub(" ", text)
