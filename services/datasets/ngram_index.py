"""N-gram index: finds rows that share n consecutive words with a text, using 8-byte hashes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MAX_ROWS_OF_EVIDENCE = 10
"""GPT-3's limit: an n-gram in more rows than this is not evidence of overlap."""
_FACTOR = 0x9E3779B97F4A7C15

Hashes = npt.NDArray[np.uint64]


def hashes(words: Sequence[str], n: int) -> Hashes:
    """Return the hash of each n-gram. Equal n-grams have equal hashes only within this process."""
    if len(words) < n:
        return np.empty(0, np.uint64)
    single = np.array([hash(word) & 0xFFFFFFFFFFFFFFFF for word in words], np.uint64)
    powers = np.array([pow(_FACTOR, exponent, 2**64) for exponent in range(n)], np.uint64)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(single, n) @ powers, np.uint64)


class NgramIndex:
    """Finds rows by their n-grams. N-grams in many rows are ignored, because they belong to a common prompt."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._hashes, self._owners = array("Q"), array("q")
        self._rows = 0
        self._sorted: tuple[Hashes, npt.NDArray[np.int64]] | None = None

    def add(self, texts: Sequence[Sequence[str]], row: int) -> None:
        """Add all n-grams in the texts of a row. Each text is a list of words."""
        found = np.unique(np.concatenate([np.empty(0, np.uint64), *(hashes(words, self.n) for words in texts)]))
        self._hashes.frombytes(found.astype(np.uint64).tobytes())
        self._owners.extend([row] * len(found))
        self._rows += 1

    def find(self, words: Sequence[str]) -> tuple[int, int] | None:
        """Find the first n-gram in `words` that a row contains. Returns its position and the row, or None."""
        ngrams, owners = self._sorted = self._sorted or self._rare()
        queries = hashes(words, self.n)
        if not len(ngrams) or not len(queries):
            return None
        positions = np.minimum(np.searchsorted(ngrams, queries), len(ngrams) - 1)
        hits = np.flatnonzero(ngrams[positions] == queries)
        return (int(hits[0]), int(owners[positions[hits[0]]])) if len(hits) else None

    def _rare(self) -> tuple[Hashes, npt.NDArray[np.int64]]:
        found, first, counts = np.unique(np.frombuffer(self._hashes, np.uint64), return_index=True, return_counts=True)
        rare = np.array([is_evidence(int(count), self._rows) for count in counts], np.bool_)
        return found[rare], np.frombuffer(self._owners, np.int64)[first[rare]]


def is_evidence(count: int, rows: int) -> bool:
    """Return whether a text that occurs in `count` rows identifies a task. If it does not, it is a common prompt."""
    return count == 1 or (count <= MAX_ROWS_OF_EVIDENCE and count * 2 <= rows)
