"""Chooses the rows of a file whose tokens are counted, and counts them."""

from __future__ import annotations

from pathlib import Path

from rollyard.analysis.metrics.tokens.row_tally import RowTally
from rollyard.analysis.metrics.tokens.token_tally import TokenTally
from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.records.io.lines import Lines

MAX_BYTES = 128 << 20
"""Of larger files, evenly spaced parts of this total size are read."""
_PART = 4 << 20
_FEWEST = 8
"""Number of parts of a sample, at least."""


def sampled_ranges(size: int, most: int = MAX_BYTES, part: int = _PART) -> list[tuple[int, int]]:
    """Return byte ranges of together at most about `most` bytes, evenly spaced over the file.

    A row is counted if it begins in one of them, so that long rows are as likely to be chosen as short ones.
    """
    if size <= most:
        return [(start, min(start + part, size)) for start in range(0, size, part)]
    part = min(part, max(1, most // _FEWEST))
    parts = max(1, most // part)
    return [(start, start + part) for start in (index * (size - part) // max(1, parts - 1) for index in range(parts))]


def tally_range(path: Path, start: int, stop: int) -> TokenTally:
    """Count the tokens of the rows that begin in a range. Invalid lines are skipped. Raises OSError."""
    tally = RowTally()
    # The line that is being written is not complete.
    for line in iter_jsonl(Lines(path, start, stop, whole=True), skip):
        tally.add(line.value, line.offset)
    return tally.result()
