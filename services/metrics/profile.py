"""profile: one run's rollouts -> its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.services.datasets.spread import spread
from rollyard.services.metrics import per_task
from rollyard.services.metrics.datasets import by_dataset, scales
from rollyard.services.metrics.estimators import clustered_mean, mean, pearson
from rollyard.services.metrics.estimators import total as total_of
from rollyard.services.metrics.failures import failures
from rollyard.services.metrics.loader.columns import CategoryColumn, Columns, Floats, Ints
from rollyard.services.metrics.per_task import PerTask
from rollyard.services.metrics.profile_records import (
    Bin,
    Bounds,
    ByCalls,
    Coverage,
    Drift,
    Group,
    Profile,
    Rewards,
    RewardValue,
    Solved,
    Tokens,
    ToolCalls,
)
from rollyard.services.metrics.reward_scale import why_not_comparable
from rollyard.services.metrics.run_plan import RunPlan
from rollyard.services.metrics.solved import silent, which_solved
from rollyard.services.metrics.stage_times import stages

_FREQUENT = 20
_BARS = 40


@dataclass(frozen=True)
class Run:
    """One rollout file, read, with what it takes to compare it."""

    columns: Columns
    solved: NDArray[np.bool_] | None
    """Which rollouts solved their task; None where nothing says what solved is."""
    by_task: PerTask | None
    """None when nothing is measured, or rows do not say their task."""
    profile: Profile


def run_of(
    name: str,
    path: str,
    columns: Columns,
    asked: RunPlan,
    *,
    pass_threshold: float | None = None,
    indexed: bool = True,
    notes: Sequence[str] = (),
) -> Run:
    """The numbers of `columns`, sorted.

    `pass_threshold`: a reward from there on counts as solved. `indexed`: whether rows said which task they are.
    """
    rule, solved = which_solved(columns, pass_threshold)
    sets = by_dataset(columns, pass_threshold, indexed=indexed)
    by_task = PerTask.of(columns, solved) if len(columns) else None
    covered = coverage(columns, asked, by_task if indexed else None)
    found = Profile(
        name=name,
        path=path,
        models=_names(columns.model),
        agents=_names(columns.agent),
        notes=[*notes, *asked.notes, *_odd(covered), *silent(columns, pass_threshold)],
        coverage=covered,
        solved=None if solved is None or by_task is None else _solved(rule, solved, by_task, covered),
        rewards=None if by_task is None else _rewards(columns, by_task, covered),
        tool_calls=_tool_calls(columns, solved) if len(columns) else None,
        turns=spread(columns.turns),
        tasks=None if by_task is None or not indexed else per_task.tasks(by_task, covered),
        ends=_by(columns.end, columns, solved),
        by_agent=_by(columns.agent, columns, solved) if len(columns.agent.names) > 1 else [],
        by_dataset=sets,
        by_code=_by(columns.code, columns, solved) if len(columns.code.names) > 1 else [],
        tokens=_tokens(columns, solved),
        stages=stages(columns),
        drift=_drift(columns),
        failures=failures(columns, asked.attempts),
        identity=asked.identity,
    )
    return Run(columns, solved, by_task if indexed else None, found)


def coverage(columns: Columns, asked: RunPlan, by_task: PerTask | None) -> Coverage:
    """How much of what was asked for is measured."""
    repeats, expected = asked.repeats, asked.rollouts
    if asked.tasks is not None and repeats is None and len(columns):
        # Only the data set is known: each task was to be played as often as the most played one.
        repeats = int(columns.repeat.max()) + 1
        expected = asked.tasks * repeats
    complete = None
    if repeats is not None and by_task is not None:
        complete = int((by_task.measured >= repeats).sum())
    return Coverage(
        measured=len(columns),
        expected=expected,
        expected_from=asked.source if expected is not None else "",
        tasks_measured=0 if by_task is None else len(by_task),
        tasks_expected=asked.tasks,
        tasks_complete=complete,
        repeats=repeats,
    )


def _odd(covered: Coverage) -> list[str]:
    if covered.expected is not None and covered.measured > covered.expected:
        return [f"{covered.expected_from} asks for {covered.expected} rollouts; the file holds {covered.measured}."]
    return []


def bounds(total: float, covered: Coverage, worst: float, best: float) -> Bounds:
    """What the mean over all that was asked for could be; `total`: the sum over what is measured."""
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


def _rewards(columns: Columns, by_task: PerTask, covered: Coverage) -> Rewards:
    reward = columns.reward
    low, high = float(reward.min()), float(reward.max())
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
        most_frequent=[RewardValue(reward=value, rollouts=count) for count, value in frequent[:_FREQUENT]],
        histogram=histogram(reward),
    )


def distinct(values: Floats) -> tuple[Floats, Ints]:
    """Values, ascending, with how often each is there. Equal to nine decimals is equal: rewards are sums."""
    with np.errstate(over="ignore"):
        rounded = np.round(values, 9)
    found, counts = np.unique(np.where(np.isfinite(rounded), rounded, values) + 0.0, return_counts=True)
    return found, counts


def histogram(values: Floats) -> list[Bin]:
    """A bar for each value where there are few, else equal steps."""
    found, counts = distinct(values)
    if len(found) <= _BARS:
        return [Bin(low=v, high=v, rollouts=n) for v, n in zip(found.tolist(), counts.tolist(), strict=True)]
    counts, edges = np.histogram(values, bins=_BARS)
    return [
        Bin(low=low, high=high, rollouts=n)
        for low, high, n in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    ]


def _tool_calls(columns: Columns, solved: NDArray[np.bool_] | None) -> ToolCalls:
    calls, reward = columns.tool_calls, columns.reward
    by_count = [
        ByCalls(
            tool_calls=int(count),
            rollouts=len(there),
            mean_reward=mean(reward[there]),
            solved=None if solved is None else int(solved[there].sum()),
        )
        for count, there in _groups(calls)
    ]
    return ToolCalls(
        mean=mean(calls),
        min=int(calls.min()),
        max=int(calls.max()),
        correlation=pearson(calls, reward),
        by_count=by_count,
    )


def _by(words: CategoryColumn, columns: Columns, solved: NDArray[np.bool_] | None) -> list[Group]:
    """Rollouts by what a column says, the most frequent first; those that say nothing are left out."""
    groups = [
        Group(
            name=words.names[int(code)],
            rollouts=len(there),
            solved=None if solved is None else int(solved[there].sum()),
            mean_reward=mean(columns.reward[there]),
        )
        for code, there in _groups(words.codes)
        if code >= 0
    ]
    return sorted(groups, key=lambda group: (-group.rollouts, group.name))


def _groups(values: NDArray[Any]) -> Iterator[tuple[Any, Ints]]:
    """Each distinct value, ascending, with the indexes where it stands."""
    if len(values):
        order = np.argsort(values, kind="stable")
        for there in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
            yield values[there[0]], there


def _names(words: CategoryColumn) -> list[str]:
    """By frequency."""
    codes, counts = np.unique(words.codes[words.codes >= 0], return_counts=True)
    return [words.names[code] for code in codes[np.argsort(-counts, kind="stable")].tolist()]


def _tokens(columns: Columns, solved: NDArray[np.bool_] | None) -> Tokens:
    both = columns.input_tokens + columns.output_tokens
    there = ~np.isnan(both)
    wins = 0 if solved is None else int(solved[there].sum())
    return Tokens(
        input=spread(columns.input_tokens),
        output=spread(columns.output_tokens),
        reasoning=spread(columns.reasoning_tokens),
        per_solved=total_of(both[there]) / wins if wins else None,
    )


def _drift(columns: Columns) -> Drift | None:
    there = ~np.isnan(columns.trail_turns) & ~np.isnan(columns.trail_breaks)
    if not there.any():
        return None
    turns, breaks = int(columns.trail_turns[there].sum()), int(columns.trail_breaks[there].sum())
    segments = columns.trail_segments[there]
    return Drift(
        rollouts=int(there.sum()),
        turns=turns,
        breaks=breaks,
        rate=breaks / turns if turns else None,
        broken_rollouts=int((columns.trail_breaks[there] > 0).sum()),
        most_segments=0 if np.isnan(segments).all() else int(np.nanmax(segments)),
    )
