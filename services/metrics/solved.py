"""solving: what counts as solved, in each data set of a run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rollyard.services.metrics.loader.columns import Columns, Floats
from rollyard.services.metrics.reward_scale import NO_NAME

Flags = NDArray[np.bool_]


def parts_of(columns: Columns) -> Iterator[tuple[str, Flags]]:
    """The data sets of a run by name, and which rollouts are of each; rows that name none are one under ''."""
    for code in np.unique(columns.dataset.codes).tolist():
        yield "" if code < 0 else columns.dataset.names[code], columns.dataset.codes == code


def which_solved(columns: Columns, threshold: float | None) -> tuple[str, Flags | None]:
    """What counts as solved, in words, and which rollouts are; None where a data set does not say.

    A threshold given by the user wins. Else each data set decides for itself (`solved_by`), because environments that
    report success may be mixed with others that do not.
    """
    if threshold is not None:
        return f"reward of at least {threshold:g} (pass_threshold)", columns.reward >= threshold
    rules, solved = dict[str, list[str]](), np.zeros(len(columns), bool)
    for name, there in parts_of(columns):
        rule, own = solved_by(columns.reward[there], columns.success[there])
        if own is None:
            return "", None
        rules.setdefault(rule, []).append(name or NO_NAME)
        solved[there] = own
    if not rules:
        return "", None
    if len(rules) == 1:
        return next(iter(rules)), solved
    return "; ".join(f"in {', '.join(names)}: {rule}" for rule, names in rules.items()), solved


def solved_by(reward: Floats, success: Floats) -> tuple[str, Flags | None]:
    """The rule of one data set.

    The environment's own `success` decides, as in NeMo Gym's report (a row without it is not solved). Without it,
    rewards that all lie in 0..1 are solved at 1; of other rewards nothing can be said.
    """
    if not np.isnan(success).all():
        return "the environment reports success", success == 1
    if len(reward) and reward.min() >= 0 and reward.max() <= 1:
        return "reward of 1: the environment reports no success, and all rewards lie in 0..1", reward >= 1
    return "", None


def silent(columns: Columns, threshold: float | None) -> list[str]:
    """A note on rows without success in data sets where others report it."""
    if threshold is not None:
        return []
    counts = [np.isnan(columns.success[there]) for _, there in parts_of(columns)]
    mixed = sum(int(none.sum()) for none in counts if not none.all())
    if not mixed:
        return []
    return [f"{mixed} of {len(columns)} rows report no success, while others do: they count as not solved."]
