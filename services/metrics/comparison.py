"""difference: two runs against each other, task by task."""

from __future__ import annotations

import math

import numpy as np

from services.metrics.bytask import ByTask
from services.metrics.columns import Floats, Ints, word
from services.metrics.estimators import estimate, mean, sign_test
from services.metrics.profile import Run
from services.metrics.records import Estimate
from services.types import Json, Record

_LARGEST = 10


class Change(Record):
    """A task that changed between two runs."""

    task: int
    before: float
    after: float


class Difference(Record):
    """One run against the first, over the tasks of both: each task weighs the same, however often it was played."""

    name: str
    baseline: str
    tasks: int
    """In both."""
    only_baseline: int
    only_here: int
    reward: Estimate | None
    """Mean of the tasks' differences in mean reward, with the interval of paired samples; so for the solve rate."""
    solve_rate: Estimate | None
    outcome: str
    """What `better`, `worse`, `gained` and `lost` go by: solve rate, or mean reward where solved means nothing."""
    better: int
    worse: int
    equal: int
    sign_test_p: float | None
    gained: list[Change]
    """The ten largest changes for the better."""
    lost: list[Change]
    identity: list[str]
    """What differs between the two manifests, a line each."""
    notes: list[str]


def difference(baseline: Run, other: Run) -> Difference:
    """`other` minus `baseline` over the tasks that both have measured, each task weighing the same."""
    before, after = baseline.by_task, other.by_task
    if before is None or after is None:
        return _nothing(baseline, other, "one of the two has no measured rollout that says its task")
    task, here, there = np.intersect1d(before.task, after.task, assume_unique=True, return_indices=True)
    if not len(task):
        return _nothing(baseline, other, "they have no task in common")
    rewards = after.mean[there] - before.mean[here]
    rates = _rates(before, after, here, there)
    outcome = "mean reward" if rates is None else "solve rate"
    change, first, second = (rewards, before.mean[here], after.mean[there]) if rates is None else rates
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    return Difference(
        name=other.profile.name,
        baseline=baseline.profile.name,
        tasks=len(task),
        only_baseline=len(before) - len(task),
        only_here=len(after) - len(task),
        reward=paired(rewards),
        solve_rate=None if rates is None else paired(rates[0]),
        outcome=outcome,
        better=better,
        worse=worse,
        equal=len(task) - better - worse,
        sign_test_p=sign_test(better, worse),
        gained=_changes(task, first, second, np.lexsort((task, -change))[: min(_LARGEST, better)]),
        lost=_changes(task, first, second, np.lexsort((task, change))[: min(_LARGEST, worse)]),
        identity=different(baseline.profile.identity or {}, other.profile.identity or {}),
        notes=_notes(baseline, other),
    )


def paired(differences: Floats) -> Estimate:
    """Mean of the tasks' differences and its 95 % interval: a paired t interval, one pair a task."""
    center, count = mean(differences), len(differences)
    if count < 2 or np.ptp(differences) == 0:
        return Estimate(mean=center)
    variance = math.fsum((differences - center) ** 2) / (count - 1) / count
    return estimate(center, variance, count)


def different(before: Json, after: Json, prefix: str = "") -> list[str]:
    """What differs between two manifests' identities, a line each: `num_repeats: 8 -> 16`."""
    lines: list[str] = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += different(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{word(prefix + key)}: {_said(old)} -> {_said(new)}")
    return lines


def _said(value: object) -> str:
    return "not set" if value is None else word(str(value))


def _rates(before: ByTask, after: ByTask, here: Ints, there: Ints) -> tuple[Floats, Floats, Floats] | None:
    if before.solve_rate is None or after.solve_rate is None:
        return None
    first, second = before.solve_rate[here], after.solve_rate[there]
    return second - first, first, second


def _changes(task: Ints, before: Floats, after: Floats, chosen: Ints) -> list[Change]:
    return [Change(task=int(task[i]), before=float(before[i]), after=float(after[i])) for i in chosen.tolist()]


def _notes(baseline: Run, other: Run) -> list[str]:
    """What makes the pairing doubtful."""
    notes = []
    inputs = [(run.profile.identity or {}).get("input_sha256") for run in (baseline, other)]
    if None in inputs:
        notes.append("Tasks are paired by their index; no manifest says whether both runs had the same input.")
    elif inputs[0] != inputs[1]:
        notes.append(
            "Their inputs differ (input_sha256): tasks are paired by their index, and task 7 of one may be another "
            "puzzle than task 7 of the other."
        )
    rules = [run.profile.solved.rule if run.profile.solved else "" for run in (baseline, other)]
    if rules[0] != rules[1]:
        notes.append("The two do not count the same as solved; give +pass_threshold=... for both.")
    return notes


def _nothing(baseline: Run, other: Run, why: str) -> Difference:
    return Difference(
        name=other.profile.name,
        baseline=baseline.profile.name,
        tasks=0,
        only_baseline=0 if baseline.by_task is None else len(baseline.by_task),
        only_here=0 if other.by_task is None else len(other.by_task),
        reward=None,
        solve_rate=None,
        outcome="",
        better=0,
        worse=0,
        equal=0,
        sign_test_p=None,
        gained=[],
        lost=[],
        identity=[],
        notes=[f"Nothing to compare: {why}."],
    )
