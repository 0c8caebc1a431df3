"""Search: which lines of a file hold a text. A scan of bytes by a thread, which goes on while somebody asks for it."""

from __future__ import annotations

import json
import threading
import time
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 20
_MOST_CASED = 4
_PATIENCE_S = 10.0
"""A search that nobody has asked about for so long stops where it is; asked again, it goes on from there."""


class Search:
    """One text in one file. It follows the file: what grows is searched, too."""

    def __init__(self, path: Path, text: str, patience_s: float = _PATIENCE_S) -> None:
        """Nothing is searched until somebody asks."""
        self._path = path
        self._forms = forms(text)
        self._patience_s = patience_s
        self._hits = array("q")
        self._position = 0
        self._until = 0
        self._asked = 0.0
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def ask(self, until: int, wait_s: float = 0.0) -> tuple[NDArray[np.int64], float]:
        """Bytes where lines with the text begin, as far as the file is searched, and the share that is, of `until`.

        `until`: bytes of whole lines. Waits a moment, because most files need no more.
        """
        with self._lock:
            self._asked, self._until = time.monotonic(), max(until, self._until)
            if self._position < self._until and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._scan, name="search", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None and wait_s > 0:
            thread.join(wait_s)
        with self._lock:
            searched = 1.0 if self._position >= until else self._position / until
            return np.array(self._hits, np.int64), searched

    def stop(self) -> None:
        """End it; what was found is forgotten with the object."""
        self._stopped = True

    def _scan(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while self._wanted() and (chunk := file.read(min(_CHUNK, self._until - self._position))):
                    # To the end of a line: no text stands across two.
                    self._search(chunk if chunk.endswith(b"\n") else chunk + file.readline())
        except OSError:
            return

    def _wanted(self) -> bool:
        with self._lock:
            waited = time.monotonic() - self._asked
            return not self._stopped and self._position < self._until and waited < self._patience_s

    def _search(self, chunk: bytes) -> None:
        found: set[int] = set()
        lowered = chunk.lower()
        for form in self._forms:
            hit = lowered.find(form)
            while hit >= 0:
                found.add(self._position + lowered.rfind(b"\n", 0, hit) + 1)
                end = lowered.find(b"\n", hit)
                hit = lowered.find(form, end) if end >= 0 else -1
        with self._lock:
            self._hits.extend(sorted(found))
            self._position += len(chunk)


def forms(text: str) -> list[bytes]:
    """How a text may stand in a line whose ASCII letters are lower-cased; none of them contains another.

    As it is, or escaped as in a JSON text, or twice, as in a tool's JSON answer that is a text itself; letters beyond
    ASCII as they are or as escapes, in lower or upper case.
    """
    ways = _cases(text)
    once = {_escaped(way, ascii_only) for way in ways for ascii_only in (True, False)}
    twice = {_escaped(way, ascii_only) for way in once for ascii_only in (True, False)}
    found = {way.encode("utf-8", "replace").lower() for way in (*ways, *once, *twice)}
    return sorted(way for way in found if b"\n" not in way and not any(other in way for other in found - {way}))


def _cases(text: str) -> set[str]:
    """With each letter beyond ASCII in either case; of many such letters, all in the same."""
    letters = {letter for letter in text if not letter.isascii() and len({letter, letter.swapcase()}) == 2}
    letters = {letter for letter in letters if len(letter.swapcase()) == 1}
    if len(letters) > _MOST_CASED:
        return {text, text.lower(), text.upper()}
    ways = {text}
    for letter in letters:
        ways |= {way.replace(letter, letter.swapcase()) for way in ways}
    return ways


def _escaped(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]
