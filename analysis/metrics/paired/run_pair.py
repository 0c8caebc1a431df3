"""Compares a candidate with a baseline: metrics, costs, changed tasks, and differences in settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.comparison import changed_settings
from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.paired.difference import Level, difference
from rollyard.analysis.metrics.paired.holm import holm
from rollyard.analysis.metrics.paired.metric import COLUMNS, REWARD, SECONDS, SOLVE_RATE, Metric, of_rollouts
from rollyard.analysis.metrics.paired.records import ChangedTask, ChangedTasks, ComparedRun, PairedDifference, RunPair
from rollyard.analysis.metrics.paired.task_values import GroupedRun, common
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.task_pairing import BY_CONTENT, BY_PROMPT, SAME_INPUT, Pairing, pair
from rollyard.records.errors import OperatorError

MAX_CHANGED = 10_000
"""Maximum length of the lists of changed tasks."""


@dataclass(frozen=True)
class PairedRuns:
    """Two runs whose rollouts are assigned to common tasks."""

    baseline: GroupedRun
    candidate: GroupedRun
    all_tasks: bool = False
    """Whether the tasks are those of either run, so that a task without a rollout in one of them is missing there."""
    _rollouts: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)

    def rollouts(self, metric: Metric) -> tuple[Floats, Floats]:
        """Return the metric of each rollout in both runs. Raises OperatorError if it is undefined for a run."""
        if metric.name not in self._rollouts:
            self._rollouts[metric.name] = (
                of_rollouts(self.baseline.run, metric),
                of_rollouts(self.candidate.run, metric),
            )
        return self._rollouts[metric.name]

    def compare(self, metric: Metric, level: Level, dataset: str | None = None) -> PairedDifference | None:
        """Return the difference over the tasks that have the metric in both runs; None if there is no such task."""
        rollouts = self.rollouts(metric)
        before = self.baseline.values(metric, rollouts[0])
        after = self.candidate.values(metric, rollouts[1])
        chosen = ~(np.isnan(before) | np.isnan(after))
        if dataset is not None:
            chosen &= self.in_dataset(dataset)
        if not chosen.any():
            return None
        counts = self.baseline.counts[chosen], self.candidate.counts[chosen]
        return difference(
            metric,
            before[chosen],
            after[chosen],
            level,
            single=bool((counts[0] == 1).all() and (counts[1] == 1).all()),
            equal_counts=counts[0] == counts[1],
            span=span_of(rollouts),
            dataset=dataset,
        )

    def in_dataset(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the tasks of a dataset, which the baseline names, or the candidate for its missing tasks."""
        found = np.zeros(self.baseline.tasks, bool)
        for one in (self.candidate, self.baseline):
            known = one.group >= 0
            column = one.run.columns.dataset
            inside = np.array([own == name for own in column.names] + [name == ""], bool)[column.codes]
            found[one.group[known]] = inside[known]
        return found


def span_of(rollouts: Sequence[Floats]) -> float:
    """Return the distance between the highest and the lowest value of both runs."""
    return max(float(np.nanmax(values)) for values in rollouts) - min(float(np.nanmin(values)) for values in rollouts)


def compare_runs(baseline: Run, candidate: Run, metrics: Sequence[Metric], level: Level) -> RunPair:
    """Compare `candidate` with `baseline` on the tasks that both contain.

    `metrics` may be empty, which chooses solve rate and mean reward as far as they are defined. Raises OperatorError if
    a given metric is undefined for a run.
    """
    pairing = pair(baseline, candidate)
    settings = changed_settings(baseline.profile.identity or {}, candidate.profile.identity or {})
    sides = pairing.sides
    found = RunPair(
        baseline=compared_run(baseline),
        candidate=compared_run(candidate),
        paired_by=pairing.by,
        tasks=len(pairing.here),
        only_baseline=0 if sides is None else len(sides[0].key) - len(pairing.here),
        only_candidate=0 if sides is None else len(sides[1].key) - len(pairing.here),
        differences=[],
        costs=[],
        changed_by="",
        gained=ChangedTasks(),
        lost=ChangedTasks(),
        settings=settings,
        notes=notes_of(baseline, candidate, pairing),
    )
    if sides is None or pairing.why_not:
        return found
    paired = PairedRuns(*common(pairing, (baseline, candidate)))
    chosen = list(metrics) or default_metrics(paired)
    datasets = [one.name for one in baseline.profile.by_dataset]
    # An effect is a difference of one scale: that of the solve rate, unless the metrics are named.
    levels = {
        metric: level if metrics or metric.name == SOLVE_RATE else replace(level, effect=None) for metric in chosen
    }
    differences = [paired.compare(metric, levels[metric], name) for name in (None, *datasets) for metric in chosen]
    for metric, one in zip(chosen, differences, strict=False):
        if one is None:
            raise OperatorError(f"no task has {metric.name} in both runs; for pass@k and cons@k, it needs k rollouts")
    if not metrics and different_scales(baseline, candidate):
        differences = [one for one in differences if one and (one.metric != REWARD or one.dataset is not None)]
    gained, lost = (
        changed_tasks(paired, chosen[0], lower_is_better=chosen[0].is_cost)
        if chosen
        else (ChangedTasks(), ChangedTasks())
    )
    return found.model_copy(
        update={
            "differences": [one for one in differences if one is not None],
            "costs": _costs(paired, level),
            "changed_by": chosen[0].name if chosen else "",
            "gained": gained,
            "lost": lost,
        }
    )


def default_metrics(paired: PairedRuns) -> list[Metric]:
    """Return solve rate and mean reward, without those that are undefined or equal to the solve rate."""
    runs = paired.baseline.run, paired.candidate.run
    found = []
    if all(run.solved is not None for run in runs):
        found.append(Metric(SOLVE_RATE))
        if all(np.array_equal(run.columns.reward, run.solved) for run in runs if run.solved is not None):
            return found
    return [*found, Metric(REWARD)]


def different_scales(*runs: Run) -> bool:
    """Return whether the mean over all rewards is meaningless, because datasets have different reward scales."""
    return any(run.profile.rewards is not None and run.profile.rewards.why_no_mean for run in runs)


def with_holm(pairs: Sequence[RunPair]) -> tuple[list[RunPair], int]:
    """Correct the p-values over all tasks for the number of metrics and candidates; those of datasets, separately, for
    the number of datasets, too. Returns the pairs and the number of p-values over all tasks.
    """
    adjusted: dict[tuple[int, int], float] = {}
    tests = 0
    for whole in (True, False):
        places = [
            (number, index, one.p)
            for number, found in enumerate(pairs)
            for index, one in enumerate(found.differences)
            if one.p is not None and (one.dataset is None) == whole
        ]
        tests = len(places) if whole else tests
        if len(places) > 1:
            corrected = holm([p for _, _, p in places])
            adjusted |= {(number, index): p for (number, index, _), p in zip(places, corrected, strict=True)}
    changed = [
        found.model_copy(
            update={
                "differences": [
                    one.model_copy(update={"p_holm": adjusted.get((number, index))})
                    for index, one in enumerate(found.differences)
                ]
            }
        )
        for number, found in enumerate(pairs)
    ]
    return changed, tests


def compared_run(run: Run) -> ComparedRun:
    found = run.profile
    tasks = 0 if run.by_task is None else len(run.by_task)
    return ComparedRun(name=found.name, path=found.path, models=found.models, coverage=found.coverage, tasks=tasks)


def _costs(paired: PairedRuns, level: Level) -> list[PairedDifference]:
    found = []
    for name in (*COLUMNS, SECONDS):
        runs = paired.baseline.run, paired.candidate.run
        columns = [run.columns.stages.get("total") if name == SECONDS else getattr(run.columns, name) for run in runs]
        if any(values is None or np.isnan(values).all() or not np.nansum(np.abs(values)) for values in columns):
            continue
        if (one := paired.compare(Metric(name), replace(level, effect=None))) is not None:
            untested = {"p": None, "test": "", "sign_test_p": None, "tasks_needed": None}
            # Costs that never change, such as the tokens of a prompt, are known and not estimated.
            found.append(one.model_copy(update=untested if one.better or one.worse else {**untested, "interval": None}))
    return found


def changed_tasks(paired: PairedRuns, metric: Metric, *, lower_is_better: bool) -> tuple[ChangedTasks, ChangedTasks]:
    """Return the tasks in which the candidate is better and those in which it is worse, largest change first."""
    rollouts = paired.rollouts(metric)
    before = paired.baseline.values(metric, rollouts[0])
    after = paired.candidate.values(metric, rollouts[1])
    change = np.nan_to_num(after - before)
    order = np.lexsort((paired.baseline.first, -np.abs(change)))
    content, dataset = _of_tasks(paired.baseline)

    def listed(chosen: Ints) -> ChangedTasks:
        tasks = [
            ChangedTask(
                task=int(paired.baseline.first[task]),
                task_in_candidate=int(paired.candidate.first[task]),
                key="" if content[task] == 0 else int(content[task]).to_bytes(8, signed=True).hex(),
                dataset="" if dataset[task] < 0 else paired.baseline.run.columns.dataset.names[dataset[task]],
                baseline=float(before[task]),
                candidate=float(after[task]),
            )
            for task in chosen[:MAX_CHANGED].tolist()
        ]
        return ChangedTasks(total=len(chosen), tasks=tasks)

    better = -1 if lower_is_better else 1
    gains, losses = order[better * change[order] > 1e-12], order[better * change[order] < -1e-12]
    return listed(gains), listed(losses)


def _of_tasks(grouped: GroupedRun) -> tuple[Ints, Ints]:
    """Return the content key and the dataset's code of each task."""
    known = grouped.group >= 0
    content, dataset = np.zeros(grouped.tasks, np.int64), np.full(grouped.tasks, -1, np.int64)
    content[grouped.group[known]] = grouped.run.columns.content[known]
    dataset[grouped.group[known]] = grouped.run.columns.dataset.codes[known]
    return content, dataset


def notes_of(baseline: Run, candidate: Run, pairing: Pairing) -> list[str]:
    if pairing.why_not:
        return [f"Nothing to compare: {pairing.why_not}."]
    how = {
        SAME_INPUT: "index, because both manifests have the same input_sha256",
        BY_CONTENT: "content (_ng_task_key)",
        BY_PROMPT: "prompt and tools",
    }
    notes = [f"Tasks are paired by {how[pairing.by]}."]
    notes += [f"{run.profile.name}: {note}" for run in (baseline, candidate) for note in run.profile.notes]
    for run, side in zip((baseline, candidate), pairing.sides or (), strict=False):
        if run.by_task is not None and len(run.by_task) > len(side.key):
            notes.append(
                f"{run.profile.name} contains {len(run.by_task) - len(side.key):,} duplicate tasks; their rollouts "
                "count as repeats of one task."
            )
        if run.profile.coverage.missing:
            notes.append(
                f"{run.profile.coverage.missing:,} rollouts of {run.profile.name} are missing; only measured rollouts "
                "are compared."
            )
    rules = [run.profile.solved.rule if run.profile.solved else "" for run in (baseline, candidate)]
    if rules[0] != rules[1]:
        notes.append("The two runs define solved differently; pass --pass-threshold ... to use one for both.")
    return notes
