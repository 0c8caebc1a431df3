"""Decides whether a candidate may replace a baseline: GO, NO-GO or INCONCLUSIVE.

`decide` pairs the tasks of the two runs, refuses runs that must not be compared, and applies each rule to an interval
of the gain. Missing rollouts widen it: its lower bound counts them against the candidate, its upper bound in its
favour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rollyard.analysis.metrics import comparison, run_pair
from rollyard.analysis.metrics.columns import Floats, Ints, displayable
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_pair import REWARD, SOLVE_RATE, GroupedRun, Metric, PairedRuns, PairLevel
from rollyard.analysis.metrics.solved import Flags
from rollyard.analysis.report.comparison_report import change
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import iter_jsonl, skip
from rollyard.records.types import Json, Record, differences


class Decision(StrEnum):
    GO = "GO"
    """The whole interval of the gain is above the required one."""
    NO_GO = "NO-GO"
    """The whole interval of the gain is below the required one."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The interval contains the required gain: the runs are too small to tell."""

    @property
    def exit_status(self) -> int:
        return {Decision.GO: 0, Decision.NO_GO: 1, Decision.INCONCLUSIVE: 3}[self]


class RuleResult(Record):
    metric: str
    dataset: str | None
    requirement: str
    """The rule as text."""
    decision: Decision
    least_gain: float
    """The gain that the candidate must exceed; negative if a drop is allowed."""
    gain: float
    """How much better the candidate is than the baseline, over the measured rollouts."""
    low: float | None
    """Of the gain's interval, with missing rollouts counted against the candidate; in its favour for `high`."""
    high: float | None
    missing_baseline: int
    missing_candidate: int
    tasks: int
    tasks_needed: int | None
    """If inconclusive: number of tasks with which a candidate that equals the baseline would get a GO with a
    probability of 80%. None for rules that require a gain, and if it cannot be estimated."""
    reason: str
    """Why the decision was made, as a sentence."""
    difference: run_pair.PairedDifference
    """Candidate minus baseline over the measured rollouts."""


class GateVerdict(Record):
    version: str
    decision: Decision
    baseline: run_pair.ComparedRun
    candidate: run_pair.ComparedRun
    tasks: int
    alpha: float
    seed: int
    resamples: int
    rules: list[RuleResult]
    settings: list[str]
    """The differences between the runs that `allow_different` allowed."""
    changed_by: str
    """The metric of the first rule, by which tasks are in `regressed` and `improved`."""
    regressed: run_pair.ChangedTasks
    improved: run_pair.ChangedTasks
    notes: list[str]


DEFAULT_MAX_DROP = 0.01


class GateRule(BaseModel):
    """A requirement on the difference between candidate and baseline in one metric. Set `max_drop` or `min_gain`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    metric: str = SOLVE_RATE
    """solve_rate, reward, pass@k, cons@k, output_tokens, turns, tool_calls, seconds, or a numeric key of the rows."""
    dataset: str | None = None
    """The dataset of a mixture; default: all tasks."""
    max_drop: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How much worse the candidate may be."""
    min_gain: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How much better the candidate must be."""
    better: Literal["higher", "lower"] | None = None
    """Which values are better; default: lower for tokens, turns, tool calls and seconds, else higher."""

    @property
    def lower_is_better(self) -> bool:
        return Metric(self.metric).is_cost if self.better is None else self.better == "lower"

    @property
    def least_gain(self) -> float:
        """The gain that the candidate must exceed; negative if a drop is allowed."""
        return self.min_gain if self.min_gain is not None else -(self.max_drop or 0.0)


def decide(
    baseline: Run,
    candidate: Run,
    rules: Sequence[GateRule],
    level: PairLevel,
    *,
    version: str,
    min_coverage: float | None = None,
    allow_different: Sequence[str] = (),
) -> GateVerdict:
    """Return the verdict on `candidate`.

    Raises OperatorError if the runs cannot be compared: if their tasks or sampling parameters differ and the difference
    is not in `allow_different`, or if a smaller share of the expected rollouts than `min_coverage` is measured.
    """
    pairing = comparison.pair(baseline, candidate)
    if pairing.sides is None or pairing.why_not:
        raise OperatorError(f"the runs cannot be compared: {pairing.why_not}")
    found, note = _setting_differences(baseline, candidate)
    if names := _refused([name for name, _, _ in found], allow_different):
        listed = "\n".join(
            f"  {name}: {old} in the baseline, {new} in the candidate" for name, old, new in found if name in names
        )
        raise OperatorError(
            f"the runs were sampled differently:\n{listed}\nCollect one of them again with the other's settings, or "
            f"accept the difference with --allow-different {','.join(names)}"
        )
    paired = _paired(pairing, baseline, candidate, allow_different)
    wanted = _expected_rollouts(paired)
    results = [_result(paired, rule, level, wanted, min_coverage) for rule in rules]
    decisions = {result.decision for result in results}
    overall = next(one for one in (Decision.NO_GO, Decision.INCONCLUSIVE, Decision.GO) if one in decisions)
    improved, regressed = run_pair.changed_tasks(
        paired, Metric(rules[0].metric), lower_is_better=rules[0].lower_is_better
    )
    return GateVerdict(
        version=version,
        decision=overall,
        baseline=run_pair.compared_run(baseline),
        candidate=run_pair.compared_run(candidate),
        tasks=paired.baseline.tasks,
        alpha=level.alpha,
        seed=level.seed,
        resamples=level.resamples,
        rules=results,
        settings=[f"{name}: {old} -> {new}" for name, old, new in found],
        changed_by=rules[0].metric,
        regressed=regressed,
        improved=improved,
        notes=[*run_pair.notes_of(baseline, candidate, pairing), *([note] if note else [])],
    )


def _paired(pairing: comparison.Pairing, baseline: Run, candidate: Run, allow_different: Sequence[str]) -> PairedRuns:
    """Assign the rollouts to tasks. Tasks that are missing in one run are included, unless tasks may be different."""
    runs = baseline, candidate
    if _TASKS in allow_different:
        return PairedRuns(*run_pair.common(pairing, runs))
    paired = PairedRuns(*run_pair.common(pairing, runs, all_tasks=True), all_tasks=True)
    if pairing.by == comparison.SAME_INPUT:
        return paired
    for one, other in ((paired.baseline, paired.candidate), (paired.candidate, paired.baseline)):
        absent, covered, columns = int((one.multiplicity == 0).sum()), one.run.profile.coverage, one.run.columns
        without_reward = len(np.setdiff1d(columns.unmeasured.task, columns.task))
        missing_tasks = max(0, (covered.tasks_expected or 0) - covered.tasks_measured, without_reward)
        if absent > missing_tasks:
            raise OperatorError(
                f"the runs have different tasks: {absent:,} tasks of {other.run.profile.name} are not in "
                f"{one.run.profile.name} ({len(pairing.here):,} are in both). Collect both runs from the same dataset, "
                f"or compare only the common tasks with --allow-different {_TASKS}"
            )
    return paired


def _result(
    paired: PairedRuns,
    rule: GateRule,
    level: PairLevel,
    wanted: tuple[_Expected, _Expected],
    min_coverage: float | None,
) -> RuleResult:
    metric, rollouts = Metric(rule.metric), paired.rollouts(Metric(rule.metric))
    runs = paired.baseline.run, paired.candidate.run
    if rule.metric == REWARD and rule.dataset is None and comparison.different_scales(*runs):
        raise OperatorError("the mean reward over all datasets is undefined; set the rule's dataset")
    chosen = np.ones(paired.baseline.tasks, bool) if rule.dataset is None else paired.in_dataset(rule.dataset)
    if not chosen.any():
        raise OperatorError(f"no task is in the dataset {rule.dataset!r}")
    absent = []
    for one, values, own in zip((paired.baseline, paired.candidate), rollouts, wanted, strict=True):
        known = np.maximum(own.repeats - one.known(values), 0)[chosen]
        absent.append(int(known.sum()) + own.unseen * own.unseen_repeats)
        total = own.rollouts if rule.dataset is None else max(1, round(own.rollouts * chosen.sum() / one.tasks))
        _check_coverage(one.run.profile.name, rule.metric, absent[-1], total, min_coverage)
    best, worst = max(float(np.nanmax(one)) for one in rollouts), min(float(np.nanmin(one)) for one in rollouts)
    if metric.is_share:
        best, worst = 1.0, 0.0
    if rule.lower_is_better:
        best, worst = worst, best
    if metric.votes and any(absent):
        raise OperatorError(f"{metric.name} needs every rollout, but {sum(absent):,} are missing")
    if rule.least_gain:
        level = replace(level, effect=abs(rule.least_gain))
    single = all((own.repeats == 1).all() for own in wanted) and not metric.votes
    measured = paired.compare(metric, level, rule.dataset)
    if measured is None:
        raise OperatorError(f"no task has {metric.name} in both runs")
    intervals: list[run_pair.Interval | None] = [measured.interval] * 2
    if any(absent):
        # The lower bound counts missing rollouts against the candidate, the upper bound in its favour.
        intervals, span = [], run_pair.span_of(rollouts)
        for fills in ((best, worst), (worst, best)):
            before, after = _filled(paired, metric, wanted, chosen, fills)
            intervals.append(run_pair.difference(metric, before, after, level, single=single, span=span).interval)
    low = high = None
    against, favourable = intervals
    if against is not None and favourable is not None:
        low, high = (-against.high, -favourable.low) if rule.lower_is_better else (against.low, favourable.high)
    decision = Decision.INCONCLUSIVE
    if low is not None and low > rule.least_gain:
        decision = Decision.GO
    elif high is not None and high < rule.least_gain:
        decision = Decision.NO_GO
    undecided = decision == Decision.INCONCLUSIVE and rule.min_gain is None
    result = RuleResult(
        metric=rule.metric,
        dataset=rule.dataset,
        requirement=_requirement_of(rule),
        decision=decision,
        least_gain=rule.least_gain,
        gain=-measured.difference if rule.lower_is_better else measured.difference,
        low=low,
        high=high,
        missing_baseline=absent[0],
        missing_candidate=absent[1],
        tasks=measured.tasks,
        tasks_needed=measured.tasks_needed if undecided else None,
        reason="",
        difference=measured,
    )
    return result.model_copy(update={"reason": _reason_of(result, level.alpha)})


def _check_coverage(name: str, metric: str, missing: int, total: int, min_coverage: float | None) -> None:
    share = 1 - missing / total
    if share < (1.0 if min_coverage is None else min_coverage):
        expectation = "all are needed" if min_coverage is None else f"--min-coverage {min_coverage:g} is needed"
        raise OperatorError(
            f"{missing:,} of {total:,} expected rollouts of {name} have no {metric} ({share:.2%} measured; "
            f"{expectation}). Resume its collection, or accept missing rollouts with --min-coverage ..., which counts "
            "them against the candidate"
        )


_TASKS = "tasks"
"""The name under which runs with different tasks can be allowed."""
_MODEL_KEYS = frozenset({"model", "model_name", "openai_model", "model_path", "tokenizer"})
"""Settings that name the model, which is what a gate compares."""
_NOT_SAMPLING = frozenset({"input", "instructions", "tools", "metadata", "model"})
_SAMPLED = ("agent_name", "num_repeats", "num_repeats_add_seed", "responses_create_params", "settings")
"""Keys of the manifest's identity that are compared. Inputs are compared by their tasks instead."""


def _setting_differences(baseline: Run, candidate: Run) -> tuple[list[tuple[str, str, str]], str]:
    """Return the name and both values of each differing setting of the manifests, and a note if one has none."""
    identities = [run.profile.identity for run in (baseline, candidate)]
    if identities[0] is not None and identities[1] is not None:
        before, after = ({key: one[key] for key in _SAMPLED if key in one} for one in identities if one is not None)
        note = ""
    else:
        runs = baseline, candidate
        before, after = ({"responses_create_params": _first_parameters(run)} for run in runs)
        without = " and ".join(run.profile.name for run in runs if run.profile.identity is None)
        note = f"Without the manifest of {without}, only the sampling parameters of the first rows are compared."
    found = [
        (displayable(name), _shown(old), _shown(new))
        for name, old, new in differences(before, after)
        if name.rpartition(".")[2] not in _MODEL_KEYS
    ]
    return found, note


def _refused(names: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Return the names that are not allowed to differ. An allowed name includes all settings below it."""
    return [name for name in names if not any(name == one or name.startswith(f"{one}.") for one in allowed)]


def _first_parameters(run: Run) -> Json:
    if run.file is None:
        return {}
    for line in iter_jsonl(run.file, skip):
        parameters = line.value.get("responses_create_params")
        if isinstance(parameters, dict):
            return {key: value for key, value in parameters.items() if key not in _NOT_SAMPLING}
    return {}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "set"
    return "not set" if value is None else displayable(str(value))


@dataclass(frozen=True)
class _Expected:
    repeats: Ints
    """For each task."""
    unseen: int
    """Number of tasks without a rollout in either run, each with `unseen_repeats` expected ones."""
    unseen_repeats: int

    @property
    def rollouts(self) -> int:
        return int(self.repeats.sum()) + self.unseen * self.unseen_repeats


def _expected_rollouts(paired: PairedRuns) -> tuple[_Expected, _Expected]:
    """Return the expected rollouts of both runs, from the manifest or else from the task with the most rollouts."""
    sides = paired.baseline, paired.candidate
    multiplicity = np.maximum.reduce([np.ones(sides[0].tasks, np.int64), *(one.multiplicity for one in sides)])
    repeats, unseen = [_repeats(one) for one in sides], 0
    if paired.all_tasks:
        for one, count in zip(sides, repeats, strict=True):
            absent = int(np.maximum(count * multiplicity - one.counts, 0).sum())
            unseen = max(unseen, -(-((one.run.profile.coverage.missing or 0) - absent) // count))
    first, second = (_Expected(count * multiplicity, unseen, count) for count in repeats)
    return first, second


def _repeats(grouped: GroupedRun) -> int:
    repeats = grouped.run.profile.coverage.repeats
    if repeats is None:
        most = int(grouped.run.by_task.measured.max()) if grouped.run.by_task is not None else 1
        # Rows without a reward are rollouts that should have one.
        repeats = max(most, 1 + int(grouped.run.columns.unmeasured.repeat.max(initial=0)))
    return repeats


def _filled(
    paired: PairedRuns, metric: Metric, wanted: tuple[_Expected, _Expected], chosen: Flags, fills: tuple[float, float]
) -> tuple[Floats, Floats]:
    """Return the metric of the chosen tasks in both runs. A missing rollout counts as its run's value in `fills`."""
    values, runs = [], (paired.baseline, paired.candidate)
    for one, rollouts, own, fill in zip(runs, paired.rollouts(metric), wanted, fills, strict=True):
        measured = one.values(metric, rollouts, own.repeats, fill)[chosen]
        values.append(np.concatenate([measured, np.full(own.unseen, fill)]))
    return values[0], values[1]


def _requirement_of(rule: GateRule) -> str:
    """Return the rule as text: `solve_rate: at most 1.00 points lower`."""
    name = rule.metric if rule.dataset is None else f"{rule.dataset}: {rule.metric}"
    amount = change(rule.metric, abs(rule.least_gain)).lstrip("+")
    better, worse = ("lower", "higher") if rule.lower_is_better else ("higher", "lower")
    return f"{name}: at most {amount} {worse}" if rule.min_gain is None else f"{name}: more than {amount} {better}"


def _reason_of(result: RuleResult, alpha: float) -> str:
    if result.low is None or result.high is None:
        return "No interval can be estimated from these tasks."
    low, high = (change(result.metric, bound).removesuffix(" points") for bound in (result.low, result.high))
    gain = f"{100 * (1 - alpha):.6g}% interval of the gain, {low} to {high}"
    limit = change(result.metric, result.least_gain)
    if result.decision != Decision.INCONCLUSIVE:
        return f"The whole {gain}, is {'above' if result.decision == Decision.GO else 'below'} {limit}."
    text = f"The {gain}, contains {limit}: too little data to tell."
    if result.tasks_needed is not None:
        text += f" An equally good candidate would need about {result.tasks_needed:,} tasks for a GO "
        text += f"({result.tasks:,} here)."
    return text
