"""Detector: Extremely long rollouts; Extremely short rollouts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollyard.analysis.findings.detector import Detector, Selection
from rollyard.analysis.findings.evidence import Evidence, Flags
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.metrics.loader.columns import Floats

_LEAST_ROLLOUTS = 30
_FACTOR = 5.0
_DEVIATIONS = 6.0


def outliers(evidence: Evidence, sign: int) -> Flags:
    """Return the rollouts that are extremely long (`sign` 1) or extremely short (-1)."""
    tokens = evidence.columns.output_tokens
    return far_from_median(np.where(np.isnan(tokens), evidence.signs.length, tokens), sign)


def far_from_median(length: Floats, sign: int) -> Flags:
    """Return which lengths are extremely far above (`sign` 1) or below (-1) the median."""
    if len(length) < _LEAST_ROLLOUTS:
        return np.zeros(len(length), bool)
    logs = np.log(np.maximum(length, 1.0))
    off = sign * (logs - np.median(logs))
    deviation = 1.4826 * float(np.median(np.abs(off)))
    return np.asarray(off > max(float(np.log(_FACTOR)), _DEVIATIONS * deviation))


class UnusuallyLong(Detector):
    """The model wrote more than 5 times the median number of tokens (characters, if tokens are not recorded), and the
    logarithm of the length is more than 6 robust standard deviations (1.4826 times the median absolute deviation) from
    the median. Among normally distributed logarithms, that happens once in a billion. Reported for 30 rollouts or more,
    from 0.1% of them.
    """

    kind = "unusually_long"
    title = "Extremely long rollouts"
    category = Category.BEHAVIOUR

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        mask = outliers(evidence, 1)
        if mask.sum() >= max(1, 0.001 * len(evidence)):
            yield Selection(mask, "are extremely long, at least 5 times the median")


class UnusuallyShort(Detector):
    """The model wrote less than a fifth of the median number of tokens (characters, if tokens are not recorded), more
    than 6 robust standard deviations below the median of the logarithms, and the task is not solved. Reported for 30
    rollouts or more, from 1% of them.
    """

    kind = "unusually_short"
    title = "Extremely short rollouts"
    category = Category.BEHAVIOUR

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        mask = outliers(evidence, -1) & ~evidence.paid
        if mask.sum() >= max(1, 0.01 * len(evidence)):
            yield Selection(mask, "are extremely short, less than a fifth of the median")
