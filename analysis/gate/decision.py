"""Applies the rules of a gate to two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollyard.analysis.gate.comparability import TASKS, refused, setting_differences
from rollyard.analysis.gate.coverage import Expected, expected, filled, missing, unmeasured_tasks
from rollyard.analysis.gate.records import Decision, GateVerdict, RuleResult
from rollyard.analysis.gate.requirement import reason_of, requirement_of
from rollyard.analysis.gate.rules import GateRule
from rollyard.analysis.metrics.paired.difference import Level, difference
from rollyard.analysis.metrics.paired.metric import REWARD, Metric
from rollyard.analysis.metrics.paired.records import Interval
from rollyard.analysis.metrics.paired.run_pair import (
    PairedRuns,
    changed_tasks,
    compared_run,
    different_scales,
    notes_of,
    span_of,
)
from rollyard.analysis.metrics.paired.task_values import common
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.task_pairing import SAME_INPUT, Pairing, pair
from rollyard.records.errors import OperatorError


def decide(
    baseline: Run,
    candidate: Run,
    rules: Sequence[GateRule],
    level: Level,
    *,
    version: str,
    min_coverage: float | None = None,
    allow_different: Sequence[str] = (),
) -> GateVerdict:
    """Return the verdict on `candidate`.

    Raises OperatorError if the runs cannot be compared: if their tasks or sampling parameters differ and the difference
    is not in `allow_different`, or if a smaller share of the expected rollouts than `min_coverage` is measured.
    """
    pairing = pair(baseline, candidate)
    if pairing.sides is None or pairing.why_not:
        raise OperatorError(f"the runs cannot be compared: {pairing.why_not}")
    found, note = setting_differences(baseline, candidate)
    if names := refused([name for name, _, _ in found], allow_different):
        listed = "\n".join(
            f"  {name}: {old} in the baseline, {new} in the candidate" for name, old, new in found if name in names
        )
        raise OperatorError(
            f"the runs were sampled differently:\n{listed}\nCollect one of them again with the other's settings, or "
            f"accept the difference with --allow-different {','.join(names)}"
        )
    paired = _paired(pairing, baseline, candidate, allow_different)
    wanted = expected(paired)
    results = [_result(paired, rule, level, wanted, min_coverage) for rule in rules]
    decisions = {result.decision for result in results}
    overall = next(one for one in (Decision.NO_GO, Decision.INCONCLUSIVE, Decision.GO) if one in decisions)
    improved, regressed = changed_tasks(paired, Metric(rules[0].metric), lower_is_better=rules[0].lower_is_better)
    return GateVerdict(
        version=version,
        decision=overall,
        baseline=compared_run(baseline),
        candidate=compared_run(candidate),
        tasks=paired.baseline.tasks,
        alpha=level.alpha,
        seed=level.seed,
        resamples=level.resamples,
        rules=results,
        settings=[f"{name}: {old} -> {new}" for name, old, new in found],
        changed_by=rules[0].metric,
        regressed=regressed,
        improved=improved,
        notes=[*notes_of(baseline, candidate, pairing), *([note] if note else [])],
    )


def _paired(pairing: Pairing, baseline: Run, candidate: Run, allow_different: Sequence[str]) -> PairedRuns:
    """Assign the rollouts to tasks. Tasks that are missing in one run are included, unless tasks may be different."""
    runs = baseline, candidate
    if TASKS in allow_different:
        return PairedRuns(*common(pairing, runs))
    paired = PairedRuns(*common(pairing, runs, all_tasks=True), all_tasks=True)
    if pairing.by == SAME_INPUT:
        return paired
    for one, other in ((paired.baseline, paired.candidate), (paired.candidate, paired.baseline)):
        absent, covered = int((one.multiplicity == 0).sum()), one.run.profile.coverage
        missing_tasks = max(0, (covered.tasks_expected or 0) - covered.tasks_measured, unmeasured_tasks(one))
        if absent > missing_tasks:
            raise OperatorError(
                f"the runs have different tasks: {absent:,} tasks of {other.run.profile.name} are not in "
                f"{one.run.profile.name} ({len(pairing.here):,} are in both). Collect both runs from the same dataset, "
                f"or compare only the common tasks with --allow-different {TASKS}"
            )
    return paired


def _result(
    paired: PairedRuns, rule: GateRule, level: Level, wanted: tuple[Expected, Expected], min_coverage: float | None
) -> RuleResult:
    metric, rollouts = Metric(rule.metric), paired.rollouts(Metric(rule.metric))
    runs = paired.baseline.run, paired.candidate.run
    if rule.metric == REWARD and rule.dataset is None and different_scales(*runs):
        raise OperatorError("the mean reward over all datasets is undefined; set the rule's dataset")
    chosen = np.ones(paired.baseline.tasks, bool) if rule.dataset is None else paired.in_dataset(rule.dataset)
    if not chosen.any():
        raise OperatorError(f"no task is in the dataset {rule.dataset!r}")
    absent = [
        missing(one, values, own, chosen)
        for one, values, own in zip((paired.baseline, paired.candidate), rollouts, wanted, strict=True)
    ]
    _check_coverage(paired, rule, wanted, absent, chosen.sum(), min_coverage)
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
    intervals: list[Interval | None] = [measured.interval] * 2
    if any(absent):
        # The lower bound counts missing rollouts against the candidate, the upper bound in its favour.
        intervals = [
            difference(
                metric, *filled(paired, metric, wanted, chosen, fills), level, single=single, span=span_of(rollouts)
            ).interval
            for fills in ((best, worst), (worst, best))
        ]
    low, high = _gain_bounds(intervals[0], intervals[1], lower_is_better=rule.lower_is_better)
    decision = Decision.INCONCLUSIVE
    if low is not None and low > rule.least_gain:
        decision = Decision.GO
    elif high is not None and high < rule.least_gain:
        decision = Decision.NO_GO
    undecided = decision == Decision.INCONCLUSIVE and rule.min_gain is None
    result = RuleResult(
        metric=rule.metric,
        dataset=rule.dataset,
        requirement=requirement_of(rule),
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
    return result.model_copy(update={"reason": reason_of(result, level.alpha)})


def _gain_bounds(
    against: Interval | None, favourable: Interval | None, *, lower_is_better: bool
) -> tuple[float | None, float | None]:
    if against is None or favourable is None:
        return None, None
    return (-against.high, -favourable.low) if lower_is_better else (against.low, favourable.high)


def _check_coverage(
    paired: PairedRuns,
    rule: GateRule,
    wanted: tuple[Expected, Expected],
    absent: Sequence[int],
    tasks: int,
    min_coverage: float | None,
) -> None:
    for one, own, count in zip((paired.baseline, paired.candidate), wanted, absent, strict=True):
        total = own.rollouts if rule.dataset is None else max(1, round(own.rollouts * tasks / one.tasks))
        share = 1 - count / total
        if share < (1.0 if min_coverage is None else min_coverage):
            expectation = "all are needed" if min_coverage is None else f"--min-coverage {min_coverage:g} is needed"
            raise OperatorError(
                f"{count:,} of {total:,} expected rollouts of {one.run.profile.name} have no {rule.metric} "
                f"({share:.2%} measured; {expectation}). Resume its collection, or accept missing rollouts with "
                "--min-coverage ..., which counts them against the candidate"
            )
