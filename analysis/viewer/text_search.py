"""Searches a file for lines that contain a text, and finds what the text matched in each.

A thread scans the file for as long as the search is queried. `Snippets` has the parts of rollouts that the list of
results shows; a row is read and searched once for each text.
"""

from __future__ import annotations

import json
import re
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rollyard.analysis.viewer.api_records import Snippet
from rollyard.analysis.viewer.caches import PacedCache
from rollyard.analysis.viewer.conversation import events_of
from rollyard.analysis.viewer.untrusted_values import as_row
from rollyard.records.jsonl import line_at

_CHUNK = 1 << 20
_MAX_CASED_LETTERS = 4
_PAUSE_AFTER_S = 10.0
"""A search that has not been queried for this long pauses, and resumes at the next query."""
_MAX_SEARCHES = 4
_MAX_KEPT = 2000
_MAX_PAGE_BYTES = 48 << 20
"""Maximum size of the rows that are read for one page. Further rows have no snippet."""
BEFORE, AFTER = 60, 140
"""Number of characters that are shown before and after a match."""
_LONGEST = 200
"""Number of characters of the match that are shown."""
_SPACE = re.compile(r"\s+")


class Search:
    """Searches one file for one text, including data appended later."""

    def __init__(self, path: Path, text: str, pause_after_s: float = _PAUSE_AFTER_S) -> None:
        self._path = path
        self._forms = forms(text)
        self._pause_after_s = pause_after_s
        self._matches = array("q")
        self._position = 0
        self._until = 0
        self._last_query = 0.0
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def progress(self, until: int, wait_s: float = 0.0) -> tuple[NDArray[np.int64], float]:
        """Return the byte offsets of matching lines found so far, and the share of `until` that has been searched.

        `until` is the number of bytes in complete lines. Waits for at most `wait_s`, which is long enough for most
        files.
        """
        with self._lock:
            self._last_query, self._until = time.monotonic(), max(until, self._until)
            if self._position < self._until and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._scan, name="search", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None and wait_s > 0:
            thread.join(wait_s)
        with self._lock:
            searched = 1.0 if self._position >= until else self._position / until
            return np.array(self._matches, np.int64), searched

    def stop(self) -> None:
        self._stopped = True

    def _scan(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while self._is_queried() and (chunk := file.read(min(_CHUNK, self._until - self._position))):
                    # Up to the end of a line, because no match spans two lines.
                    self._search(chunk if chunk.endswith(b"\n") else chunk + file.readline())
        except OSError:
            return

    def _is_queried(self) -> bool:
        with self._lock:
            idle_s = time.monotonic() - self._last_query
            return not self._stopped and self._position < self._until and idle_s < self._pause_after_s

    def _search(self, chunk: bytes) -> None:
        found: set[int] = set()
        lowered = chunk.lower()
        for form in self._forms:
            match = lowered.find(form)
            while match >= 0:
                found.add(self._position + lowered.rfind(b"\n", 0, match) + 1)
                end = lowered.find(b"\n", match)
                match = lowered.find(form, end) if end >= 0 else -1
        with self._lock:
            self._matches.extend(sorted(found))
            self._position += len(chunk)


def forms(text: str) -> list[bytes]:
    """Return the byte strings to search for in a line whose ASCII letters are lower-cased. None of them contains
    another.

    The text can occur verbatim, escaped as in a JSON string, or escaped twice, as in a tool's JSON result that is
    itself a string. Non-ASCII letters can be verbatim or escaped, in lower or upper case.
    """
    variants = _cases(text)
    once = {_escaped(variant, ascii_only) for variant in variants for ascii_only in (True, False)}
    twice = {_escaped(variant, ascii_only) for variant in once for ascii_only in (True, False)}
    found = {variant.encode("utf-8", "replace").lower() for variant in (*variants, *once, *twice)}
    return sorted(
        variant
        for variant in found
        if b"\n" not in variant and not any(other in variant for other in found - {variant})
    )


def _cases(text: str) -> set[str]:
    """Return variants of the text with each non-ASCII letter in either case. If there are many such letters, all of
    them have the same case.
    """
    letters = {letter for letter in text if not letter.isascii() and len({letter, letter.swapcase()}) == 2}
    letters = {letter for letter in letters if len(letter.swapcase()) == 1}
    if len(letters) > _MAX_CASED_LETTERS:
        return {text, text.lower(), text.upper()}
    variants = {text}
    for letter in letters:
        variants |= {variant.replace(letter, letter.swapcase()) for variant in variants}
    return variants


def _escaped(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


class SearchCache:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._searches: OrderedDict[str, Search] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, text: str) -> Search:
        """Return the search for a text, starting it if necessary. Evicts the least recently used search if there are
        too many.
        """
        with self._lock:
            found = self._searches.pop(text, None) or Search(self._path, text)
            self._searches[text] = found
            while len(self._searches) > _MAX_SEARCHES:
                self._searches.popitem(last=False)[1].stop()
            return found

    def stop(self) -> None:
        with self._lock:
            while self._searches:
                self._searches.popitem()[1].stop()


class Snippets:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = PacedCache[tuple[Snippet | None, int]](_MAX_KEPT)

    def of(self, offsets: Sequence[int], text: str) -> tuple[Snippet | None, ...]:
        """Return what the text matches in each of the rows that begin at `offsets` (negative: no row).

        Raises OSError if the file cannot be read.
        """
        return tuple(self._each(offsets, text)) if text else ()

    def clear(self) -> None:
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
        spaced = re.compile(r"\s*".join(map(re.escape, "".join(text.split()))) or "(?!)", re.IGNORECASE)
        found = [(index, match.span()) for index, event in enumerate(events) if (match := spaced.search(event.text))]
    if found:
        index, (at, end) = found[0]
        event, others = events[index], len(found) - 1
        parts = _around(event.text, at, end - at)
        calls = (one.name for one in events if one.speaker == "call" and one.call == event.call)
        name = event.name or (next(calls, "") if event.speaker == "result" else "")
        return Snippet(event=index, turn=event.turn, place=event.speaker, name=name, others=others, **parts)
    return next(_in_fields(row, text), None)


def _span(text: str, part: str) -> tuple[int, int] | None:
    """Return where `part` begins and ends in `text`, ignoring case. The page uses the same rule."""
    lowered, wanted = text.lower(), part.lower()
    if len(lowered) != len(text) or len(wanted) != len(part):  # lower case would move positions
        lowered, wanted = text, part
    at = lowered.find(wanted)
    return None if at < 0 else (at, at + len(part))


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
