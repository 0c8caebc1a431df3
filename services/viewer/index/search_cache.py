"""Searches: the texts that pages look for in one file, the last few of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from rollyard.services.viewer.index.text_search import Search

_MOST = 4


class SearchCache:
    """Any thread may ask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: OrderedDict[str, Search] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, text: str) -> Search:
        """The search for a text: the one that is under way or done, else a new one; the least asked for goes."""
        with self._lock:
            found = self._kept.pop(text, None) or Search(self._path, text)
            self._kept[text] = found
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)[1].stop()
            return found

    def stop(self) -> None:
        """End all; the file was changed, or nobody looks any more."""
        with self._lock:
            while self._kept:
                self._kept.popitem()[1].stop()
