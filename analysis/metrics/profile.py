"""Computes the metrics of one run from its rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics import per_task
from rollyard.analysis.metrics.datasets import by_dataset, scales
from rollyard.analysis.metrics.drift_record import Drift
from rollyard.analysis.metrics.estimators import clustered_mean, mean, pearson
from rollyard.analysis.metrics.estimators import total as total_of
from rollyard.analysis.metrics.failures import failures
from rollyard.analysis.metrics.loader.columns import CategoryColumn, Columns, Floats, Ints
from rollyard.analysis.metrics.per_task import PerTask
from rollyard.analysis.metrics.profile_records import (
    Bin,
    Bounds,
    ByCalls,
    Coverage,
    Group,
    Profile,
    Rewards,
    RewardValue,
    Solved,
    Tokens,
    ToolCalls,
)
from rollyard.analysis.metrics.run_plan import SELECTION, RunPlan
from rollyard.analysis.metrics.shares import Groups
from rollyard.analysis.metrics.solved import Ruling, agents_are_datasets, rulings_of, silent, together
from rollyard.analysis.metrics.stage_times import stages
from rollyard.records.scores.reward_scale import why_not_comparable

_FREQUENT = 20
_BARS = 40


@dataclass(frozen=True)
class Run:
    """The metrics of a rollout file, and the data needed to compare it with other files."""

    columns: Columns
    solved: NDArray[np.bool_] | None
    """Mask of the rollouts that solved their task; None if "solved" is undefined."""
    by_task: PerTask | None
    """None if nothing is measured or rows have no task index."""
    profile: Profile
    file: Path | None = None
    """The rollout file; None if the run was not loaded from a file."""


def run_of(
    name: str,
    path: str,
    columns: Columns,
    plan: RunPlan,
    *,
    pass_threshold: float | None = None,
    rulings: Sequence[Ruling] | None = None,
    indexed: bool = True,
    notes: Sequence[str] = (),
) -> Run:
    """Compute the metrics of `columns`, which must be sorted.

    Rewards of at least `pass_threshold` count as solved. `rulings`: what counts as solved, if it is decided from
    more rollouts than these. `indexed` states whether rows have a task index.
    """
    if rulings is None:
        rulings = rulings_of(columns, pass_threshold)
    rule, solved = together(rulings, len(columns))
    datasets = by_dataset(columns, rulings, indexed=indexed)
    by_task = PerTask.of(columns, solved) if len(columns) else None
    covered = coverage(columns, plan, by_task if indexed else None)
    groups = None if by_task is None else Groups.of(columns, solved, by_task.starts)
    found = Profile(
        name=name,
        path=path,
        models=_names(columns.model),
        agents=_names(columns.agent),
        notes=[
            *(*notes, *plan.notes, *_excess(covered), *_several_models(columns.model)),
            *(*_agent_datasets(columns), *silent(columns, rulings)),
        ],
        coverage=covered,
        solved=None if solved is None or by_task is None else _solved(rule, solved, by_task, covered),
        rewards=None if by_task is None or groups is None else _rewards(columns, by_task, covered, groups),
        tool_calls=None if groups is None else _tool_calls(groups),
        turns=None if groups is None else groups.spread(columns.turns),
        tasks=None if by_task is None or not indexed else per_task.tasks(by_task, covered),
        ends=_by(columns.end, groups),
        by_agent=_by(columns.agent, groups) if len(columns.agent.names) > 1 else [],
        by_dataset=datasets,
        by_code=_by(columns.code, groups) if len(columns.code.names) > 1 else [],
        tokens=_tokens(columns, solved, groups),
        stages=[] if groups is None else stages(groups),
        drift=_drift(columns),
        failures=failures(columns, plan.attempts),
        identity=plan.identity,
    )
    return Run(columns, solved, by_task if indexed else None, found)


def coverage(columns: Columns, plan: RunPlan, by_task: PerTask | None) -> Coverage:
    """Return how many of the expected rollouts are measured."""
    repeats, expected = plan.repeats, plan.rollouts
    if plan.tasks is not None and repeats is None and len(columns):
        # Only the dataset is known, so every task is expected to have the largest number of repeats that occurs.
        repeats = int(columns.repeat.max()) + 1
        expected = plan.tasks * repeats
    complete = None
    if repeats is not None and by_task is not None:
        complete = int((by_task.measured >= repeats).sum())
    return Coverage(
        measured=len(columns),
        expected=expected,
        expected_from=plan.source if expected is not None or plan.source == SELECTION else "",
        tasks_measured=0 if by_task is None else len(by_task),
        tasks_expected=plan.tasks,
        tasks_complete=complete,
        repeats=repeats,
    )


def _agent_datasets(columns: Columns) -> list[str]:
    if not agents_are_datasets(columns):
        return []
    return ["The rows name no dataset and the rewards of the agents differ in kind: each agent counts as a dataset."]


def _excess(covered: Coverage) -> list[str]:
    if covered.expected is not None and covered.measured > covered.expected:
        return [
            f"{covered.expected_from} requests {covered.expected} rollouts, but the file contains {covered.measured}."
        ]
    return []


def bounds(total: float, covered: Coverage, worst: float, best: float) -> Bounds:
    """Return bounds on the mean over all expected rollouts. `total` is the sum over the measured ones."""
    if covered.missing is None:
        return Bounds(missing_as_zero=None, lowest=None, highest=None)
    everything = covered.measured + covered.missing
    return Bounds(
        missing_as_zero=total / everything,
        lowest=(total + covered.missing * worst) / everything,
        highest=(total + covered.missing * best) / everything,
    )


def _solved(rule: str, solved: NDArray[np.bool_], by_task: PerTask, covered: Coverage) -> Solved:
    return Solved(
        rule=rule,
        rollouts=int(solved.sum()),
        rate=clustered_mean(solved.astype(float), by_task.starts, is_share=True),
        bounds=bounds(float(solved.sum()), covered, 0.0, 1.0),
    )


def _rewards(columns: Columns, by_task: PerTask, covered: Coverage, groups: Groups) -> Rewards:
    reward = columns.reward
    low, high = float(reward.min()), float(reward.max())
    rounded = _rounded(reward)
    values, counts = distinct(reward)
    frequent = sorted(zip(counts.tolist(), values.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
    center = mean(reward)
    return Rewards(
        mean=clustered_mean(reward, by_task.starts),
        why_no_mean=why_not_comparable(scales(columns)),
        min=low,
        max=high,
        median=float(np.median(reward)),
        std=math.sqrt(total_of((reward - center) ** 2) / (len(reward) - 1)) if len(reward) > 1 else None,
        bounds=bounds(total_of(reward), covered, low, high),
        distinct=len(values),
        most_frequent=[
            RewardValue(reward=value, rollouts=count, share=groups.share(np.flatnonzero(rounded == value)))
            for count, value in frequent[:_FREQUENT]
        ],
        histogram=histogram(reward),
    )


def distinct(values: Floats) -> tuple[Floats, Ints]:
    """Return the distinct values in ascending order and their counts.

    Values that agree to nine decimals count as equal, because rewards are sums.
    """
    found, counts = np.unique(_rounded(values), return_counts=True)
    return found, counts


def _rounded(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        rounded = np.round(values, 9)
    return np.asarray(np.where(np.isfinite(rounded), rounded, values) + 0.0)


def histogram(values: Floats) -> list[Bin]:
    """Return one bar per distinct value if there are few, otherwise bars of equal width."""
    found, counts = distinct(values)
    if len(found) <= _BARS:
        return [Bin(low=v, high=v, rollouts=n) for v, n in zip(found.tolist(), counts.tolist(), strict=True)]
    # Rounded like the values, so that a value at an edge is in the bar that begins there.
    counts, edges = np.histogram(_rounded(values), _rounded(np.linspace(found[0], found[-1], _BARS + 1)))
    return [
        Bin(low=low, high=high, rollouts=n)
        for low, high, n in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    ]


def _tool_calls(groups: Groups) -> ToolCalls:
    calls, reward, solved = groups.columns.tool_calls, groups.columns.reward, groups.solved
    by_count = [
        ByCalls(
            tool_calls=int(count),
            rollouts=len(rows),
            mean_reward=mean(reward[rows]),
            solved=None if solved is None else int(solved[rows].sum()),
            share=groups.share(rows),
            reward=groups.reward(rows),
            rate=groups.rate(rows),
        )
        for count, rows in _groups(calls)
    ]
    return ToolCalls(
        mean=mean(calls),
        min=int(calls.min()),
        max=int(calls.max()),
        correlation=pearson(calls, reward),
        by_count=by_count,
    )


def _by(column: CategoryColumn, groups: Groups | None) -> list[Group]:
    """Group rollouts by the values of a column, most frequent value first. Rows without a value are excluded."""
    if groups is None:
        return []
    found = [
        Group(
            name=column.names[int(code)],
            rollouts=len(rows),
            solved=None if groups.solved is None else int(groups.solved[rows].sum()),
            mean_reward=mean(groups.columns.reward[rows]),
            share=groups.share(rows),
            reward=groups.reward(rows),
            rate=groups.rate(rows),
        )
        for code, rows in _groups(column.codes)
        if code >= 0
    ]
    return sorted(found, key=lambda group: (-group.rollouts, group.name))


def _groups(values: NDArray[Any]) -> Iterator[tuple[Any, Ints]]:
    """Yield each distinct value in ascending order, with the indexes at which it occurs."""
    if len(values):
        order = np.argsort(values, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
            yield values[rows[0]], rows


def _names(column: CategoryColumn) -> list[str]:
    """Return the names, most frequent first."""
    codes, counts = np.unique(column.codes[column.codes >= 0], return_counts=True)
    return [column.names[code] for code in codes[np.argsort(-counts, kind="stable")].tolist()]


def _several_models(column: CategoryColumn) -> list[str]:
    """Return a note with the number of rollouts that each model answered, if there are several."""
    names = _names(column)
    if len(names) < 2:
        return []
    counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.names))
    found = ", ".join(f"{name} {counts[column.names.index(name)]:,}" for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return [
        f"Rollouts by the model that answered (response.model): {found}{more}. Check that each is the one you want."
    ]


def _tokens(columns: Columns, solved: NDArray[np.bool_] | None, groups: Groups | None) -> Tokens:
    both = columns.input_tokens + columns.output_tokens
    rows = ~np.isnan(both)
    wins = 0 if solved is None else int(solved[rows].sum())
    return Tokens(
        input=None if groups is None else groups.spread(columns.input_tokens),
        output=None if groups is None else groups.spread(columns.output_tokens),
        reasoning=None if groups is None else groups.spread(columns.reasoning_tokens),
        per_solved=total_of(both[rows]) / wins if wins else None,
    )


def _drift(columns: Columns) -> Drift | None:
    rows = ~np.isnan(columns.trail_turns) & ~np.isnan(columns.trail_breaks)
    if not rows.any():
        return None
    turns, breaks = int(columns.trail_turns[rows].sum()), int(columns.trail_breaks[rows].sum())
    segments = columns.trail_segments[rows]
    return Drift(
        rollouts=int(rows.sum()),
        turns=turns,
        breaks=breaks,
        rate=breaks / turns if turns else None,
        broken_rollouts=int((columns.trail_breaks[rows] > 0).sum()),
        most_segments=0 if np.isnan(segments).all() else int(np.nanmax(segments)),
    )
