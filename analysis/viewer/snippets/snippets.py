"""Provides the snippets of a page of search results. A row is read and searched once for each text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rollyard.analysis.viewer.fields.paced_cache import PacedCache
from rollyard.analysis.viewer.index.line_reader import as_row
from rollyard.analysis.viewer.snippets.snippet_of import snippet_of
from rollyard.analysis.viewer.snippets.snippet_records import Snippet
from rollyard.records.io.lines import line_at

_MAX_KEPT = 2000
_MAX_PAGE_BYTES = 48 << 20
"""Maximum size of the rows that are read for one page. Further rows have no snippet."""


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
