"""Searches a file for lines that contain a text. A thread scans the file for as long as the search is queried."""

from __future__ import annotations

import json
import threading
import time
from array import array
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 20
_MAX_CASED_LETTERS = 4
_PAUSE_AFTER_S = 10.0
"""A search that has not been queried for this long pauses, and resumes at the next query."""
_MAX_SEARCHES = 4


class Search:
    """Searches one file for one text, including data appended later."""

    def __init__(self, path: Path, text: str, pause_after_s: float = _PAUSE_AFTER_S) -> None:
        """The search starts at the first call to `progress`."""
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
    """Caches searches by their text. Thread-safe."""

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
        """Stop all searches, because the file was changed or is being closed."""
        with self._lock:
            while self._searches:
                self._searches.popitem()[1].stop()
