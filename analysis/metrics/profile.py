"""Computes the metrics of one run from its rollouts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics import per_task
from rollyard.analysis.metrics.columns import CategoryColumn, Columns, Floats, Ints, chosen
from rollyard.analysis.metrics.estimators import clustered_mean, clustered_share, mean, pearson, total
from rollyard.analysis.metrics.per_task import Groups, PerTask, pass_at
from rollyard.analysis.metrics.profile_records import (
    Bin,
    Bounds,
    ByCalls,
    Coverage,
    DatasetFigures,
    Drift,
    FailureKindCount,
    Failures,
    Group,
    Profile,
    Rewards,
    RewardValue,
    Solved,
    Stage,
    Tokens,
    ToolCalls,
)
from rollyard.analysis.metrics.run_plan import SELECTION, FailedAttempts, RunPlan
from rollyard.analysis.metrics.solved import Ruling, agents_are_datasets, parts_of, rulings_of, silent, together
from rollyard.records.scores import NO_NAME, Scale, why_not_comparable


def failures(columns: Columns, attempts: FailedAttempts) -> Failures:
    """Count the rows of the failures file and the rollout file's rows without a reward, which NeMo Gym writes."""
    rows = columns.unmeasured
    task = np.concatenate([attempts.task, rows.task])
    repeat = np.concatenate([attempts.repeat, rows.repeat])
    kind = [*attempts.kind, *(rows.kind.names[code] for code in rows.kind.codes.tolist())]
    server = [*attempts.server, *("" for _ in range(len(rows.task)))]
    last = _last_of_each(task, repeat)
    measured = _among(task[last], repeat[last], columns.task, columns.repeat)
    lost = Counter(kind[index] for index in last[~measured].tolist())
    servers: dict[str, Counter[str]] = {}
    for name, server_name in zip(kind, server, strict=True):
        servers.setdefault(name, Counter())[server_name] += 1
    trials = len(np.union1d(task, columns.task))
    kinds = [
        FailureKindCount(
            kind=name,
            attempts=found.total(),
            lost=lost[name],
            share=clustered_share(found.total(), len(kind) + len(columns), trials),
            servers=[server_name for server_name, _ in found.most_common() if server_name],
        )
        for name, found in sorted(servers.items(), key=lambda item: (-item[1].total(), item[0]))
    ]
    return Failures(attempts=len(kind), mended=int(measured.sum()), lost=int((~measured).sum()), kinds=kinds)


def _last_of_each(task: Ints, repeat: Ints) -> Ints:
    """Return the index of each rollout's last attempt."""
    order = np.lexsort((np.arange(len(task)), repeat, task))
    follows = (np.diff(task[order], append=-1) != 0) | (np.diff(repeat[order], append=-1) != 0)
    last: Ints = order[follows]
    return last


def _among(task: Ints, repeat: Ints, tasks: Ints, repeats: Ints) -> NDArray[np.bool_]:
    """Return a mask of the (task, repeat) pairs that occur in (`tasks`, `repeats`)."""
    found = np.zeros(len(task), bool)
    if len(task) and len(tasks):
        all_tasks, all_repeats = np.concatenate([tasks, task]), np.concatenate([repeats, repeat])
        # Neither side has duplicates, so of two equal neighbours, the first is from `tasks` and the second from `task`.
        order = np.lexsort((np.arange(len(all_tasks)), all_repeats, all_tasks))
        follows = (np.diff(all_tasks[order]) == 0) & (np.diff(all_repeats[order]) == 0)
        found[order[1:][follows] - len(tasks)] = True
    return found


TOTAL = "total"
REST = "(rest)"
"""Time that an episode spent outside all stages, such as queueing and the agent's own work."""


def stages(groups: Groups) -> list[Stage]:
    """Return the `total`, followed by the stages, longest first. REST is the time outside all stages."""
    found = dict(groups.columns.stages)
    totals = found.get(TOTAL)
    if totals is None:
        return _listed({name: (seconds, None) for name, seconds in found.items()}, groups)
    timed = ~np.isnan(totals)
    known = [np.nan_to_num(seconds[timed]) for name, seconds in found.items() if name != TOTAL]
    # A missing stage counts as 0 s, so that every share has the same denominator.
    staged = np.sum(known, axis=0) if known else np.zeros(int(timed.sum()))
    if known:
        found[REST] = np.full(len(totals), np.nan)
        found[REST][timed] = np.maximum(totals[timed] - staged, 0.0)
    denominator = total(np.maximum(totals[timed], staged))
    shares: dict[str, float | None] = {
        name: total(np.nan_to_num(seconds[timed])) / denominator if denominator > 0 else None
        for name, seconds in found.items()
    }
    # Sums of rounded stages may exceed the total by microseconds.
    if (of_total := shares[TOTAL]) is not None:
        shares[TOTAL] = 1.0 if of_total > 0.999 else None
    return _listed({name: (seconds, shares[name]) for name, seconds in found.items()}, groups)


def _listed(found: dict[str, tuple[Floats, float | None]], groups: Groups) -> list[Stage]:
    listed = [
        Stage(stage=name, seconds=spent, share=share)
        for name, (seconds, share) in found.items()
        if (spent := groups.spread(seconds)) is not None
    ]
    return sorted(listed, key=lambda stage: (stage.stage != TOTAL, -stage.seconds.total, stage.stage))


def by_dataset(columns: Columns, rulings: Sequence[Ruling], *, indexed: bool) -> list[DatasetFigures]:
    """Return the metrics of each dataset, sorted by name; empty if the run has only one dataset."""
    if len(rulings) < 2:
        return []
    found = []
    for ruling in sorted(rulings, key=lambda one: one.dataset):
        own, wins = chosen(columns, ruling.rows), ruling.solved
        grouped = PerTask.of(own, wins)
        rate = None if wins is None else clustered_mean(wins.astype(float), grouped.starts, is_share=True)
        reward = clustered_mean(own.reward, grouped.starts)
        found.append(
            DatasetFigures(
                name=ruling.dataset,
                rollouts=len(own),
                tasks=len(grouped) if indexed else 0,
                solved=None if wins is None else int(wins.sum()),
                solved_rule=ruling.rule,
                rate=rate,
                mean_reward=reward.mean,
                reward=reward,
                min=float(own.reward.min()),
                max=float(own.reward.max()),
                pass_at=pass_at(grouped) if indexed else [],
            )
        )
    return found


def scales(columns: Columns) -> dict[str, Scale]:
    """Return the reward scale of each dataset."""
    return {
        name or NO_NAME: Scale(
            low=float(columns.reward[mask].min()),
            high=float(columns.reward[mask].max()),
            unlike_success=int(
                ((columns.success[mask] == 1) != (columns.reward[mask] == 1))[~np.isnan(columns.success[mask])].sum()
            ),
            agents=frozenset(
                "" if code < 0 else columns.agent.names[code] for code in np.unique(columns.agent.codes[mask]).tolist()
            ),
        )
        for name, mask in parts_of(columns)
    }


_AGENT_DATASETS = (
    "The rows name no dataset and the rewards of the agents differ in kind: each agent counts as a dataset."
)
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
            *([_AGENT_DATASETS] if agents_are_datasets(columns) else []),
            *silent(columns, rulings),
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


def _excess(covered: Coverage) -> list[str]:
    if covered.expected is not None and covered.measured > covered.expected:
        return [
            f"{covered.expected_from} requests {covered.expected} rollouts, but the file contains {covered.measured}."
        ]
    return []


def bounds(found: float, covered: Coverage, worst: float, best: float) -> Bounds:
    """Return bounds on the mean over all expected rollouts. `found` is the sum over the measured ones."""
    if covered.missing is None:
        return Bounds(missing_as_zero=None, lowest=None, highest=None)
    everything = covered.measured + covered.missing
    return Bounds(
        missing_as_zero=found / everything,
        lowest=(found + covered.missing * worst) / everything,
        highest=(found + covered.missing * best) / everything,
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
        std=math.sqrt(total((reward - center) ** 2) / (len(reward) - 1)) if len(reward) > 1 else None,
        bounds=bounds(total(reward), covered, low, high),
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
        per_solved=total(both[rows]) / wins if wins else None,
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
