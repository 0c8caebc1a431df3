"""Determines what counts as solved in each dataset of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rollyard.services.metrics.loader.columns import Columns, Floats
from rollyard.services.metrics.reward_scale import NO_NAME

Flags = NDArray[np.bool_]


def parts_of(columns: Columns) -> Iterator[tuple[str, Flags]]:
    """Yield each dataset's name with a mask of its rollouts. Rows without a name form one dataset, named ''.

    If no row has a name, as in files of NeMo Gym, and the rewards of the agents differ in kind, each agent counts as a
    dataset.
    """
    column = columns.agent if agents_are_datasets(columns) else columns.dataset
    for code in np.unique(column.codes).tolist():
        yield "" if code < 0 else column.names[code], column.codes == code


def agents_are_datasets(columns: Columns) -> bool:
    """Return whether no row names its dataset, and agents differ in whether success is reported or, among those without
    it, in whether all rewards are in 0..1.
    """
    codes = np.unique(columns.agent.codes)
    if len(codes) < 2 or (columns.dataset.codes >= 0).any():
        return False
    kinds = set[str]()
    for code in codes.tolist():
        own = columns.agent.codes == code
        kinds.add(solved_by(columns.reward[own], columns.success[own])[0])
    return len(kinds) > 1


def which_solved(columns: Columns, threshold: float | None) -> tuple[str, Flags | None]:
    """Return a description of what counts as solved, and a mask of the solved rollouts (None if a dataset has no rule).

    The user's threshold takes precedence. Otherwise, each dataset has its own rule (`solved_by`), because a run can mix
    environments that report success with environments that do not.
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


def with_solved(columns: Columns, threshold: float | None = None) -> Columns:
    """Return the columns with `success` as a report counts it (`which_solved`); unchanged if that is undefined."""
    solved = which_solved(columns, threshold)[1] if len(columns) else None
    return columns if solved is None else replace(columns, success=solved.astype(float))


def solved_by(reward: Floats, success: Floats) -> tuple[str, Flags | None]:
    """Return the rule of one dataset and a mask of its solved rollouts.

    If any row has the environment's `success`, that decides, and rows without it are not solved, as in NeMo Gym's
    report. If no row has it and all rewards are in 0..1, a reward of 1 counts as solved. Otherwise, "solved" is
    undefined and the mask is None.
    """
    if not np.isnan(success).all():
        return "the environment reports success", success == 1
    if len(reward) and reward.min() >= 0 and reward.max() <= 1:
        return "reward of 1 (the environment reports no success and all rewards are in 0..1)", reward >= 1
    return "", None


def silent(columns: Columns, threshold: float | None) -> list[str]:
    """Return a note if rows lack `success` although other rows of the same dataset report it."""
    if threshold is not None:
        return []
    counts = [np.isnan(columns.success[mask]) for _, mask in parts_of(columns)]
    mixed = sum(int(none.sum()) for none in counts if not none.all())
    if not mixed:
        return []
    return [f"{mixed} of {len(columns)} rows report no success although others do; they count as not solved."]
