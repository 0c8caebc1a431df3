"""Runs of words: which of many rows share so many words one after the other with a text, by hashes of 8 bytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

COMMON = 10
"""GPT-3's: a run of words in more rows than this is not evidence."""
_FACTOR = 0x9E3779B97F4A7C15

Hashes = npt.NDArray[np.uint64]


def hashes(words: Sequence[str], run: int) -> Hashes:
    """A hash of each `run` words in a row, equal for equal words within this process."""
    if len(words) < run:
        return np.empty(0, np.uint64)
    single = np.array([hash(word) & 0xFFFFFFFFFFFFFFFF for word in words], np.uint64)
    powers = np.array([pow(_FACTOR, exponent, 2**64) for exponent in range(run)], np.uint64)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(single, run) @ powers, np.uint64)


class NgramIndex:
    """Rows by their runs of so many words. Runs that many of the rows share are the prompt's, and not found."""

    def __init__(self, run: int) -> None:
        self.run = run
        self._runs, self._owners = array("Q"), array("q")
        self._rows = 0
        self._sorted: tuple[Hashes, npt.NDArray[np.int64]] | None = None

    def add(self, texts: Sequence[Sequence[str]], row: int) -> None:
        """The texts of one row."""
        found = np.unique(np.concatenate([np.empty(0, np.uint64), *(hashes(words, self.run) for words in texts)]))
        self._runs.frombytes(found.astype(np.uint64).tobytes())
        self._owners.extend([row] * len(found))
        self._rows += 1

    def find(self, words: Sequence[str]) -> tuple[int, int] | None:
        """Where in `words` the first run begins that a row has, and which row; None where no row has one."""
        runs, owners = self._sorted = self._sorted or self._rare()
        own = hashes(words, self.run)
        if not len(runs) or not len(own):
            return None
        at = np.minimum(np.searchsorted(runs, own), len(runs) - 1)
        hits = np.flatnonzero(runs[at] == own)
        return (int(hits[0]), int(owners[at[hits[0]]])) if len(hits) else None

    def _rare(self) -> tuple[Hashes, npt.NDArray[np.int64]]:
        found, first, counts = np.unique(np.frombuffer(self._runs, np.uint64), return_index=True, return_counts=True)
        few = np.array([is_evidence(int(count), self._rows) for count in counts], np.bool_)
        return found[few], np.frombuffer(self._owners, np.int64)[first[few]]


def is_evidence(count: int, rows: int) -> bool:
    """Whether what `count` of the rows share tells one of them: not where it is what they all begin with."""
    return count == 1 or (count <= COMMON and count * 2 <= rows)
