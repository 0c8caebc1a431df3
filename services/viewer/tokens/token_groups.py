"""Orders and filters the tokens of a tally, and makes the records of the list."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollyard.services.metrics.loader.columns import Ints
from rollyard.services.metrics.tokens.token_tally import Key, TokenTally
from rollyard.services.viewer.rollout_list import Table
from rollyard.services.viewer.token_texts import TokenDecoder
from rollyard.services.viewer.tokens.token_records import Sort, TokenExample, TokenGroup
from rollyard.services.viewer.untrusted_values import sanitize

_MANY = 2000
"""From so many tokens on, those that occur only a few times are not listed by default: chance makes their means low."""
LEAST = 5


def default_least(tally: TokenTally) -> int:
    """Return how often a token must occur to be listed, unless a number is given."""
    return LEAST if tally.tokens >= _MANY else 1


def ordered(tally: TokenTally, sort: Sort, least: int, query: str = "", decoder: TokenDecoder | None = None) -> Ints:
    """Return the indexes of the tokens that occur at least `least` times and contain `query`, in order."""
    found = np.flatnonzero(tally.count >= least)
    if query:
        needle = query.lower()
        found = found[[needle in _name(tally.keys[index], decoder).lower() for index in found.tolist()]]
    if sort == "entropy":
        found = found[tally.bounded[found] > 0]
    counts = tally.count[found]
    with np.errstate(invalid="ignore"):
        ranks: dict[Sort, NDArray[np.generic]] = {
            "surprisal": tally.log_prob[found],
            "log_prob": tally.log_prob[found] / counts,
            "entropy": -tally.entropy[found] / np.maximum(tally.bounded[found], 1),
            "rare": -tally.rare[found],
            "count": -counts,
        }
    return found[np.lexsort((found, ranks[sort]))]


def token_groups(
    tally: TokenTally, indexes: Ints, table: Table, decoder: TokenDecoder | None = None
) -> list[TokenGroup]:
    """Return the records of these tokens. Examples whose rows are not in `table`, such as duplicates, are left out.

    `decoder` gives tokens their texts if only ids are recorded.
    """
    locate = _locator(table)
    surprisal = float(tally.log_prob.sum()) or 1.0
    return [_group(tally, index, surprisal, locate, decoder) for index in indexes.tolist()]


def _group(
    tally: TokenTally,
    index: int,
    surprisal: float,
    locate: Callable[[int], tuple[int, int] | None],
    decoder: TokenDecoder | None,
) -> TokenGroup:
    key, count, bounded = tally.keys[index], int(tally.count[index]), int(tally.bounded[index])
    low, high = np.searchsorted(tally.examples["key"], [index, index + 1]).tolist()
    examples = []
    for one in tally.examples[low:high]:
        if (place := locate(int(one["offset"]))) is not None:
            task, repeat = place
            where = {"call": int(one["call"]), "position": int(one["position"]), "log_prob": float(one["log_prob"])}
            examples.append(TokenExample(task=task, repeat=repeat, **where))
    return TokenGroup(
        text=sanitize(_name(key, decoder)) if isinstance(key, str) or decoder else "",
        id=None if isinstance(key, str) else sanitize(key),
        count=count,
        share=count / tally.tokens,
        log_prob=float(tally.log_prob[index]) / count,
        lowest=float(tally.lowest[index]),
        rare=int(tally.rare[index]),
        surprisal=float(tally.log_prob[index]) / surprisal,
        entropy=float(tally.entropy[index]) / bounded if bounded else None,
        rollouts=int(tally.rollouts[index]),
        examples=examples,
    )


def _name(key: Key, decoder: TokenDecoder | None) -> str:
    return key if isinstance(key, str) else str(key) if decoder is None else decoder.text(key)


def _locator(table: Table) -> Callable[[int], tuple[int, int] | None]:
    """Return a function that returns the task and repeat of the row at a byte offset."""
    order = np.argsort(table.offset, kind="stable")
    offsets = table.offset[order]

    def locate(offset: int) -> tuple[int, int] | None:
        place = int(np.searchsorted(offsets, offset))
        if place >= len(offsets) or offsets[place] != offset:
            return None
        return int(table.task[order[place]]), int(table.repeat[order[place]])

    return locate
