"""Determines what counts as solved in each dataset of a run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rollyard.services.metrics.loader.columns import Columns, Floats
from rollyard.services.metrics.reward_scale import NO_NAME

Flags = NDArray[np.bool_]


def parts_of(columns: Columns) -> Iterator[tuple[str, Flags]]:
    """Yield each dataset's name with a mask of its rollouts. Rows without a name form one dataset, ''."""
    for code in np.unique(columns.dataset.codes).tolist():
        yield "" if code < 0 else columns.dataset.names[code], columns.dataset.codes == code


def which_solved(columns: Columns, threshold: float | None) -> tuple[str, Flags | None]:
    """Return the rule for solved as a readable text, and a mask of the solved rollouts; None if a dataset has no rule.

    The user's threshold takes precedence. Otherwise each dataset has its own rule (`solved_by`), because environments
    that report success may be mixed with environments that do not.
    """
    if threshold is not None:
        return f"reward of at least {threshold:g} (pass_threshold)", columns.reward >= threshold
    rules, solved = dict[str, list[str]](), np.zeros(len(columns), bool)
    for name, mask in parts_of(columns):
        rule, own = solved_by(columns.reward[mask], columns.success[mask])
        if own is None:
            return "", None
        rules.setdefault(rule, []).append(name or NO_NAME)
        solved[mask] = own
    if not rules:
        return "", None
    if len(rules) == 1:
        return next(iter(rules)), solved
    return "; ".join(f"in {', '.join(names)}: {rule}" for rule, names in rules.items()), solved


def solved_by(reward: Floats, success: Floats) -> tuple[str, Flags | None]:
    """Return the rule of one dataset and its mask.

    The environment's `success` decides, as in NeMo Gym's report (a row without it is not solved). If no row has it, a
    reward of 1 counts as solved if all rewards are in 0..1. Otherwise "solved" is undefined.
    """
    if not np.isnan(success).all():
        return "the environment reports success", success == 1
    if len(reward) and reward.min() >= 0 and reward.max() <= 1:
        return "reward of 1 (the environment reports no success and all rewards are in 0..1)", reward >= 1
    return "", None


def silent(columns: Columns, threshold: float | None) -> list[str]:
    """Return a note on rows without `success` in datasets where other rows report it."""
    if threshold is not None:
        return []
    counts = [np.isnan(columns.success[mask]) for _, mask in parts_of(columns)]
    mixed = sum(int(none.sum()) for none in counts if not none.all())
    if not mixed:
        return []
    return [f"{mixed} of {len(columns)} rows report no success although others do; they count as not solved."]
