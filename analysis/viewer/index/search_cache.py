"""Caches the most recent text searches of one file."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from rollyard.analysis.viewer.index.text_search import Search

_MAX_SEARCHES = 4


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
