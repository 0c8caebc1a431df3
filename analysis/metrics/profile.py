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
from rollyard.analysis.metrics import profile_records as records
from rollyard.analysis.metrics.columns import CategoryColumn, Columns, Floats, Ints, chosen
from rollyard.analysis.metrics.estimators import clustered_mean, clustered_share, mean, pearson, total
from rollyard.analysis.metrics.per_task import Groups, PerTask, pass_at
from rollyard.analysis.metrics.profile_records import Bin, Bounds, Coverage, Group, Profile, Stage
from rollyard.analysis.metrics.run_plan import SELECTION, FailedAttempts, RunPlan
from rollyard.analysis.metrics.solved import Ruling, agents_are_datasets, parts_of, rulings_of, silent, together
from rollyard.records.scores import NO_NAME, Scale, why_not_comparable


def failures(columns: Columns, attempts: FailedAttempts) -> records.Failures:
    """Count the rows of the failures file and the rollout file's rows without a reward, which NeMo Gym writes."""
    rows = columns.unmeasured
    task = np.concatenate([attempts.task, rows.task])
    repeat = np.concatenate([attempts.repeat, rows.repeat])
    kind = [*attempts.kind, *(rows.kind.names[code] for code in rows.kind.codes.tolist())]
    server = [*attempts.server, *[""] * len(rows.task)]
    last = dict(zip(zip(task.tolist(), repeat.tolist(), strict=True), range(len(task)), strict=True))
    """The index of each rollout's last attempt."""
    near = np.isin(columns.task, task)
    measured = last.keys() & zip(columns.task[near].tolist(), columns.repeat[near].tolist(), strict=True)
    lost = Counter(kind[index] for rollout, index in last.items() if rollout not in measured)
    servers: dict[str, Counter[str]] = {}
    for name, server_name in zip(kind, server, strict=True):
        servers.setdefault(name, Counter())[server_name] += 1
    trials = len(np.union1d(task, columns.task))
    kinds = [
        records.FailureKindCount(
            kind=name,
            attempts=found.total(),
            lost=lost[name],
            share=clustered_share(found.total(), len(kind) + len(columns), trials),
            servers=[server_name for server_name, _ in found.most_common() if server_name],
        )
        for name, found in sorted(servers.items(), key=lambda item: (-item[1].total(), item[0]))
    ]
    return records.Failures(attempts=len(kind), mended=len(measured), lost=len(last) - len(measured), kinds=kinds)


TOTAL = "total"
REST = "(rest)"
"""Time that an episode spent outside all stages, such as queueing and the agent's own work."""


def stages(groups: Groups) -> list[Stage]:
    """Return the `total`, followed by the stages, longest first. REST is the time outside all stages."""
    found = dict(groups.columns.stages)
    totals = found.get(TOTAL)
    shares = dict[str, float | None]()
    if totals is not None:
        timed = ~np.isnan(totals)
        known = [np.nan_to_num(seconds[timed]) for name, seconds in found.items() if name != TOTAL]
        # A missing stage counts as 0 s, so that every share has the same denominator.
        staged = np.sum(known, axis=0) if known else np.zeros(int(timed.sum()))
        if known:
            found[REST] = np.full(len(totals), np.nan)
            found[REST][timed] = np.maximum(totals[timed] - staged, 0.0)
        if (denominator := total(np.maximum(totals[timed], staged))) > 0:
            shares = {name: total(np.nan_to_num(seconds[timed])) / denominator for name, seconds in found.items()}
            # Sums of rounded stages may exceed the total by microseconds.
            shares[TOTAL] = 1.0 if (shares[TOTAL] or 0.0) > 0.999 else None
    listed = [
        Stage(stage=name, seconds=spent, share=shares.get(name))
        for name, seconds in found.items()
        if (spent := groups.spread(seconds)) is not None
    ]
    return sorted(listed, key=lambda stage: (stage.stage != TOTAL, -stage.seconds.total, stage.stage))


def by_dataset(columns: Columns, rulings: Sequence[Ruling], *, indexed: bool) -> list[records.DatasetFigures]:
    """Return the metrics of each dataset, sorted by name; empty if the run has only one dataset."""
    if len(rulings) < 2:
        return []
    found = []
    for ruling in sorted(rulings, key=lambda one: one.dataset):
        own, wins = chosen(columns, ruling.rows), ruling.solved
        grouped = PerTask.of(own, wins)
        reward = clustered_mean(own.reward, grouped.starts)
        found.append(
            records.DatasetFigures(
                name=ruling.dataset,
                rollouts=len(own),
                tasks=len(grouped) if indexed else 0,
                solved=None if wins is None else int(wins.sum()),
                solved_rule=ruling.rule,
                rate=None if wins is None else clustered_mean(wins.astype(float), grouped.starts, is_share=True),
                mean_reward=reward.mean,
                reward=reward,
                min=float(own.reward.min()),
                max=float(own.reward.max()),
                pass_at=pass_at(grouped) if indexed else [],
            )
        )
    return found


def scales(columns: Columns) -> dict[str, Scale]:
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
    repeats, expected, complete = plan.repeats, plan.rollouts, None
    if plan.tasks is not None and repeats is None and len(columns):
        # Only the dataset is known, so every task is expected to have the largest number of repeats that occurs.
        repeats = int(columns.repeat.max()) + 1
        expected = plan.tasks * repeats
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
    if covered.expected is None or covered.measured <= covered.expected:
        return []
    return [f"{covered.expected_from} requests {covered.expected} rollouts, but the file contains {covered.measured}."]


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


def _solved(rule: str, solved: NDArray[np.bool_], by_task: PerTask, covered: Coverage) -> records.Solved:
    return records.Solved(
        rule=rule,
        rollouts=int(solved.sum()),
        rate=clustered_mean(solved.astype(float), by_task.starts, is_share=True),
        bounds=bounds(float(solved.sum()), covered, 0.0, 1.0),
    )


def _rewards(columns: Columns, by_task: PerTask, covered: Coverage, groups: Groups) -> records.Rewards:
    reward = columns.reward
    low, high = float(reward.min()), float(reward.max())
    rounded = _rounded(reward)
    values, counts = distinct(reward)
    frequent = sorted(zip(counts.tolist(), values.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
    center = mean(reward)
    return records.Rewards(
        mean=clustered_mean(reward, by_task.starts),
        why_no_mean=why_not_comparable(scales(columns)),
        min=low,
        max=high,
        median=float(np.median(reward)),
        std=math.sqrt(total((reward - center) ** 2) / (len(reward) - 1)) if len(reward) > 1 else None,
        bounds=bounds(total(reward), covered, low, high),
        distinct=len(values),
        most_frequent=[
            records.RewardValue(reward=value, rollouts=count, share=groups.share(np.flatnonzero(rounded == value)))
            for count, value in frequent[:_FREQUENT]
        ],
        histogram=histogram(reward),
    )


def distinct(values: Floats) -> tuple[Floats, Ints]:
    """Return the distinct values in ascending order and their counts. Nine decimals count, because rewards are sums."""
    return np.unique(_rounded(values), return_counts=True)


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


def _tool_calls(groups: Groups) -> records.ToolCalls:
    calls = groups.columns.tool_calls
    return records.ToolCalls(
        mean=mean(calls),
        min=int(calls.min()),
        max=int(calls.max()),
        correlation=pearson(calls, groups.columns.reward),
        by_count=[records.ByCalls(tool_calls=int(count), **_figures(groups, rows)) for count, rows in _groups(calls)],
    )


def _figures(groups: Groups, rows: Ints) -> dict[str, Any]:
    """Return the fields that the records of groups of rollouts have in common."""
    return {
        "rollouts": len(rows),
        "solved": None if groups.solved is None else int(groups.solved[rows].sum()),
        "mean_reward": mean(groups.columns.reward[rows]),
        "share": groups.share(rows),
        "reward": groups.reward(rows),
        "rate": groups.rate(rows),
    }


def _by(column: CategoryColumn, groups: Groups | None) -> list[Group]:
    """Group rollouts by the values of a column, most frequent value first. Rows without a value are excluded."""
    if groups is None:
        return []
    found = [
        Group(name=column.names[int(code)], **_figures(groups, rows))
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
    return [name for name, _ in _counted(column)]


def _counted(column: CategoryColumn) -> list[tuple[str, int]]:
    codes, counts = np.unique(column.codes[column.codes >= 0], return_counts=True)
    order = np.argsort(-counts, kind="stable").tolist()
    return [(column.names[codes[at]], int(counts[at])) for at in order]


def _several_models(column: CategoryColumn) -> list[str]:
    """Return a note with the number of rollouts that each model answered, if there are several."""
    counted = _counted(column)
    if len(counted) < 2:
        return []
    found = ", ".join(f"{name} {count:,}" for name, count in counted[:5])
    more = f" and {len(counted) - 5} more" if len(counted) > 5 else ""
    return [
        f"Rollouts by the model that answered (response.model): {found}{more}. Check that each is the one you want."
    ]


def _tokens(columns: Columns, solved: NDArray[np.bool_] | None, groups: Groups | None) -> records.Tokens:
    both = columns.input_tokens + columns.output_tokens
    rows = ~np.isnan(both)
    wins = 0 if solved is None else int(solved[rows].sum())
    return records.Tokens(
        input=None if groups is None else groups.spread(columns.input_tokens),
        output=None if groups is None else groups.spread(columns.output_tokens),
        reasoning=None if groups is None else groups.spread(columns.reasoning_tokens),
        per_solved=total(both[rows]) / wins if wins else None,
    )


def _drift(columns: Columns) -> records.Drift | None:
    rows = ~np.isnan(columns.trail_turns) & ~np.isnan(columns.trail_breaks)
    if not rows.any():
        return None
    turns, breaks = int(columns.trail_turns[rows].sum()), int(columns.trail_breaks[rows].sum())
    segments = columns.trail_segments[rows]
    return records.Drift(
        rollouts=int(rows.sum()),
        turns=turns,
        breaks=breaks,
        rate=breaks / turns if turns else None,
        broken_rollouts=int((columns.trail_breaks[rows] > 0).sum()),
        most_segments=0 if np.isnan(segments).all() else int(np.nanmax(segments)),
    )
