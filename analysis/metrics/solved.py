"""Determines what counts as solved in each dataset of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.columns import Columns, Floats
from rollyard.records.scores import NO_NAME

Flags = NDArray[np.bool_]
_REPORTED = "the environment reports success"


def parts_of(columns: Columns) -> Iterator[tuple[str, Flags]]:
    """Yield each dataset's name with a mask of its rollouts. Rows without a name form one dataset, named ''.

    If no row has a name, as in files of NeMo Gym, agents with rewards of different kinds count as datasets.
    """
    column = columns.agent if agents_are_datasets(columns) else columns.dataset
    for code in np.unique(column.codes).tolist():
        yield "" if code < 0 else column.names[code], column.codes == code


def agents_are_datasets(columns: Columns) -> bool:
    """Return whether no row names its dataset and agents differ in the rule of what counts as solved."""
    codes = np.unique(columns.agent.codes)
    if len(codes) < 2 or (columns.dataset.codes >= 0).any():
        return False
    masks = [columns.agent.codes == code for code in codes.tolist()]
    return len({solved_by(columns.reward[own], columns.success[own])[0] for own in masks}) > 1


@dataclass(frozen=True)
class Ruling:
    dataset: str
    """Empty: that of the rows without a name."""
    rule: str
    rows: Flags
    """Mask of its rollouts."""
    solved: Flags | None
    """Which of these rollouts solved their task; None if that is undefined."""

    def among(self, selected: Flags) -> Ruling:
        """Return the same ruling for the rollouts that a mask selects."""
        solved = None if self.solved is None else self.solved[selected[self.rows]]
        return replace(self, rows=self.rows[selected], solved=solved)


def rulings_of(columns: Columns, threshold: float | None) -> list[Ruling]:
    """Return the ruling of each dataset. The user's threshold takes precedence over its own rule (`solved_by`)."""
    if threshold is not None:
        rule = f"reward of at least {threshold:g} (pass_threshold)"
        return [Ruling(name, rule, mask, columns.reward[mask] >= threshold) for name, mask in parts_of(columns)]
    found = []
    for name, mask in parts_of(columns):
        rule, solved = solved_by(columns.reward[mask], columns.success[mask])
        found.append(Ruling(name, rule, mask, solved))
    return found


def which_solved(columns: Columns, threshold: float | None) -> tuple[str, Flags | None]:
    """Return what counts as solved, and a mask of the solved rollouts; None if a dataset has no rule."""
    return together(rulings_of(columns, threshold), len(columns))


def together(rulings: Sequence[Ruling], rollouts: int) -> tuple[str, Flags | None]:
    """Return the rules of the datasets as one text, and a mask of the solved ones among all `rollouts`."""
    rules, solved = dict[str, list[str]](), np.zeros(rollouts, bool)
    for one in rulings:
        if one.solved is None:
            return "", None
        rules.setdefault(one.rule, []).append(one.dataset or NO_NAME)
        solved[one.rows] = one.solved
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
    """Return the rule of one dataset and a mask of its solved rollouts; None if "solved" is undefined.

    If any row has the environment's `success`, that decides, and rows without it are not solved, as in NeMo Gym's
    report. Otherwise, a reward of 1 counts as solved if all rewards are in 0..1.
    """
    if not np.isnan(success).all():
        return _REPORTED, success == 1
    if len(reward) and reward.min() >= 0 and reward.max() <= 1:
        return "reward of 1 (the environment reports no success and all rewards are in 0..1)", reward >= 1
    return "", None


def silent(columns: Columns, rulings: Sequence[Ruling]) -> list[str]:
    """Return a note if rows lack `success` although other rows of the same dataset report it."""
    mixed = sum(int(np.isnan(columns.success[one.rows]).sum()) for one in rulings if one.rule == _REPORTED)
    if not mixed:
        return []
    return [f"{mixed} of {len(columns)} rows report no success although others do; they count as not solved."]
