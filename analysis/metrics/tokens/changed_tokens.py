"""Finds the tokens whose frequency differs most between two runs.

The measure is the weighted log-odds ratio with an informative Dirichlet prior of Monroe, Colaresi and Quinn, "Fightin'
Words", Political Analysis 16(4), 2008, equations 16, 18, 19 and 22. The prior has the frequencies of both runs
together, so that the difference of a token that occurs a few times shrinks towards none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.tokens.token_tally import Key, TokenTally

PRIOR = 500.0
"""Weight of the prior, in tokens."""
MIN_ROLLOUTS = 3
"""A token must occur in so many rollouts of the run in which it is more frequent: one rollout can repeat it at will."""


@dataclass(frozen=True)
class ChangedTokens:
    """The tokens of two runs. All arrays have the length of `keys`."""

    keys: list[Key]
    index: tuple[Ints, Ints]
    """Index of each token in the tally of the first and of the second run; -1 if it does not occur."""
    counts: tuple[Ints, Ints]
    rollouts: tuple[Ints, Ints]
    log_odds: Floats
    """Natural logarithm of the ratio of the odds, second to first."""
    z: Floats
    """`log_odds` by its standard deviation, if tokens were independent. It orders tokens, but is no test."""

    def most(self, *, more: bool, limit: int) -> list[int]:
        """Return the tokens that became more frequent, or less, with the largest |z| first."""
        sign, run = (1, 1) if more else (-1, 0)
        kept = np.flatnonzero((sign * self.log_odds > 0) & (self.rollouts[run] >= MIN_ROLLOUTS))
        found: list[int] = kept[np.argsort(-sign * self.z[kept], kind="stable")][:limit].tolist()
        return found


def changed_tokens(first: TokenTally, second: TokenTally) -> ChangedTokens:
    """Compare the frequencies of tokens."""
    places = [{key: index for index, key in enumerate(tally.keys)} for tally in (first, second)]
    keys = list(dict.fromkeys([*first.keys, *second.keys]))
    index = tuple(np.array([place.get(key, -1) for key in keys], np.int64) for place in places)
    counts = tuple(_at(tally.count, one) for tally, one in zip((first, second), index, strict=True))
    rollouts = tuple(_at(tally.rollouts, one) for tally, one in zip((first, second), index, strict=True))
    totals = [float(count.sum()) for count in counts]
    prior = PRIOR * (counts[0] + counts[1]) / max(sum(totals), 1.0)
    odds, variance = np.zeros(len(keys)), np.zeros(len(keys))
    for sign, count, total in zip((-1, 1), counts, totals, strict=True):
        weighted = count + prior
        # A run with a single kind of token would have infinite odds.
        odds += sign * np.log(weighted / np.maximum(total + PRIOR - weighted, 1e-9))
        variance += 1 / weighted
    return ChangedTokens(
        keys=keys,
        index=(index[0], index[1]),
        counts=(counts[0], counts[1]),
        rollouts=(rollouts[0], rollouts[1]),
        log_odds=odds,
        z=odds / np.sqrt(variance) if len(keys) else odds,
    )


def _at(values: Ints, index: Ints) -> Ints:
    """Return the values at these indexes; 0 for -1."""
    return np.append(values, 0)[index]
