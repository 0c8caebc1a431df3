"""TokenTally: sums over generated tokens, by text and by place. Tallies of parts of a file can be merged.

Memory use does not depend on the number of tokens: it grows with the number of different tokens, which is bounded, and
with the number of tasks times the number of places (turns, positions, versions).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.loader.columns import Floats, Ints

RARE = math.log(0.01)
"""Tokens with a lower log-probability are called unlikely."""
MAX_KEYS = 200_000
"""Upper bound on different tokens, because rows are untrusted. Vocabularies have up to 256,000, most of them unused."""
MAX_VERSIONS = 200
EXAMPLES = 3
"""Number of rollouts that are kept as examples of a token."""
BIN_NATS, BINS = 0.5, 50
"""Bins of the histogram of log-probabilities. The last one contains everything below."""
LAST_TURN = 100
"""Later turns are counted together with this one."""
POSITIONS = np.array([0, 1, 2, *(2**power for power in range(2, 18))])
"""First positions of the ranges by which positions in an answer are counted, counted from 0."""
TENTHS = 10
Key = str | int
"""The text of a token, or its id if no text is recorded."""


class Place(IntEnum):
    """What a cell's `number` means."""

    ALL = 0
    TURN = 1
    """Number of the model call, counted from 1."""
    POSITION = 2
    """Index in POSITIONS."""
    TENTH = 3
    """Tenth of the answer, counted from 0."""
    VERSION = 4
    """Index in `versions`."""


CELL = np.dtype(
    [
        *(("task", np.int64), ("place", np.int8), ("number", np.int32)),
        *(("tokens", np.int64), ("log_prob", np.float64), ("rare", np.int64)),
        *(("bounded", np.int64), ("entropy", np.float64)),
    ]
)
"""Sums over the tokens of a task at a place. `bounded` counts those with alternatives, whose entropies are summed."""
EXAMPLE = np.dtype(
    [
        *(("key", np.int64), ("log_prob", np.float64), ("entropy", np.float64)),
        *(("offset", np.int64), ("call", np.int32), ("position", np.int32)),
    ]
)
"""Where a token occurs: byte offset of the row, model call and position in it, both counted from 0."""
_SUMS = ("tokens", "log_prob", "rare", "bounded", "entropy")


@dataclass(frozen=True)
class TokenTally:
    """All arrays by token have the length of `keys`."""

    keys: tuple[Key, ...]
    count: Ints
    log_prob: Floats
    """Sum of log-probabilities."""
    lowest: Floats
    rare: Ints
    bounded: Ints
    entropy: Floats
    """Sum of the entropies' lower bounds over `bounded` tokens."""
    rollouts: Ints
    """Number of rollouts that contain the token."""
    examples: NDArray[np.void]
    """The least likely occurrences, in up to EXAMPLES rollouts per token, sorted by token and log-probability."""
    cells: NDArray[np.void]
    """Sorted by task, place and number."""
    histogram: Ints
    versions: tuple[str, ...]
    rows: int = 0
    with_tokens: int = 0
    """Number of rows in which tokens are recorded."""
    calls: int = 0
    tokens: int = 0
    """Number of tokens that were counted, which are those with a log-probability."""
    left_out: int = 0
    """Number of tokens that are not counted by text, because there are too many different ones."""
    without_texts: int = 0
    """Number of tokens whose text is not recorded."""


def empty_tally() -> TokenTally:
    """Return the tally of no rows."""
    ints, floats = np.empty(0, np.int64), np.empty(0)
    cells, examples = np.empty(0, CELL), np.empty(0, EXAMPLE)
    return TokenTally((), ints, floats, floats, ints, ints, floats, ints, examples, cells, np.zeros(BINS, np.int64), ())


def merged_tallies(parts: Iterable[TokenTally]) -> TokenTally:
    """Return the tally of several parts of a file, which have no row in common."""
    tallies = list(parts)
    if len(tallies) == 1:
        return tallies[0]
    keys: dict[Key, int] = {}
    versions: dict[str, int] = {}
    codes, cells, examples, left_out = [], [], [], 0
    for tally in tallies:
        code, lost = _codes(keys, tally.keys, MAX_KEYS)
        codes.append(code)
        left_out += tally.left_out + int(tally.count[lost].sum())
        examples.append(_renamed(tally.examples, "key", code))
        cells.append(_with_versions(tally, _codes(versions, tally.versions, MAX_VERSIONS)[0]))
    everything, count = np.concatenate([np.empty(0, np.int64), *codes]), len(keys)
    kept = everything >= 0

    def summed(name: str) -> Floats:
        values = np.concatenate([np.empty(0), *(getattr(tally, name) for tally in tallies)])
        return np.bincount(everything[kept], values[kept], minlength=count).astype(float)

    lowest = np.zeros(count)
    np.minimum.at(lowest, everything[kept], np.concatenate([np.empty(0), *(one.lowest for one in tallies)])[kept])
    return TokenTally(
        keys=tuple(keys),
        count=summed("count").astype(np.int64),
        log_prob=summed("log_prob"),
        lowest=lowest,
        rare=summed("rare").astype(np.int64),
        bounded=summed("bounded").astype(np.int64),
        entropy=summed("entropy"),
        rollouts=summed("rollouts").astype(np.int64),
        examples=least_likely(np.concatenate([np.empty(0, EXAMPLE), *examples])),
        cells=joined_cells(np.concatenate([np.empty(0, CELL), *cells])),
        histogram=np.sum([np.zeros(BINS, np.int64), *(tally.histogram for tally in tallies)], axis=0),
        versions=tuple(versions),
        rows=sum(tally.rows for tally in tallies),
        with_tokens=sum(tally.with_tokens for tally in tallies),
        calls=sum(tally.calls for tally in tallies),
        tokens=sum(tally.tokens for tally in tallies),
        left_out=left_out,
        without_texts=sum(tally.without_texts for tally in tallies),
    )


def least_likely(found: NDArray[np.void]) -> NDArray[np.void]:
    """Return, for each token, its least likely occurrence in each of up to EXAMPLES rollouts."""
    by_row = found[np.lexsort((found["log_prob"], found["offset"], found["key"]))]
    first = _starts(by_row["key"], by_row["offset"])
    one_per_row = by_row[first]
    ordered = one_per_row[np.lexsort((one_per_row["log_prob"], one_per_row["key"]))]
    starts = np.flatnonzero(_starts(ordered["key"]))
    ranks = np.arange(len(ordered)) - np.repeat(starts, np.diff(starts, append=len(ordered)))
    return ordered[ranks < EXAMPLES]


def joined_cells(cells: NDArray[np.void]) -> NDArray[np.void]:
    """Add up cells of the same task and place."""
    ordered = cells[np.lexsort((cells["number"], cells["place"], cells["task"]))]
    starts = np.flatnonzero(_starts(ordered["task"], ordered["place"], ordered["number"]))
    result = ordered[starts]
    for name in _SUMS:
        if len(starts):
            result[name] = np.add.reduceat(ordered[name], starts)
    return result


def _starts(*columns: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return where a value of one of the columns differs from the one before."""
    changed = np.zeros(len(columns[0]), bool)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed


def _codes(known: dict[Key, int] | dict[str, int], names: Sequence[Key], most: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the index of each name in `known`, which grows up to `most` names, and which names found no place."""
    found = np.empty(len(names), np.int64)
    table: dict[Key, int] = known  # type: ignore[assignment]  # both kinds of names are hashable
    for place, name in enumerate(names):
        code = table.get(name, -1)
        if code < 0 and len(table) < most:
            code = table[name] = len(table)
        found[place] = code
    return found, found < 0


def _renamed(records: NDArray[np.void], field: str, codes: Ints) -> NDArray[np.void]:
    if not len(records):
        return records
    result = records.copy()
    result[field] = codes[records[field]]
    kept: NDArray[np.void] = result[result[field] >= 0]
    return kept


def _with_versions(tally: TokenTally, codes: Ints) -> NDArray[np.void]:
    cells = tally.cells.copy()
    of_version = cells["place"] == Place.VERSION
    cells["number"][of_version] = codes[cells["number"][of_version]]
    kept: NDArray[np.void] = cells[~of_version | (cells["number"] >= 0)]
    return kept
