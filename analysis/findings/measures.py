"""Turns the rollouts that a detector selects into a Finding with figures, examples and a rank."""

from __future__ import annotations

import numpy as np

from rollyard.analysis.charts.labels import short
from rollyard.analysis.findings.detector import AttemptSelection, Detector, Selection
from rollyard.analysis.findings.evidence import Evidence, Flags
from rollyard.analysis.findings.finding import Category, Example, Finding
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.estimators import clustered_mean
from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.records.scores.confidence_intervals import share_bounds

_EXAMPLES = 3
_UNCERTAIN = 0.5
"""Behaviour counts half: a rollout that behaves well instead may still fail."""
_NO_GRADIENT = 0.1
"""Rollouts without variance have no wrong reward; they only waste compute."""


def finding_of(detector: Detector, selection: Selection, evidence: Evidence) -> Finding:
    """Return the finding of a selection of measured rollouts, which must not be empty."""
    mask, columns = selection.mask, evidence.columns
    of = np.ones(len(mask), bool) if selection.of is None else selection.of
    share = _mean(mask[of].astype(float), columns.task[of], is_share=True)
    inside = outside = None
    if evidence.is_one_scale:
        inside = _mean(columns.reward[mask], columns.task[mask])
        outside = _mean(columns.reward[~mask], columns.task[~mask]) if not mask.all() else None
    count, total = int(mask.sum()), int(of.sum())
    return Finding(
        kind=detector.kind,
        title=detector.title,
        category=detector.category,
        sentence=_sentence(count, total, "rollouts", selection.what, share, inside, outside),
        definition=detector.definition,
        count=count,
        of=total,
        tasks=len(np.unique(columns.task[mask])),
        share=share,
        mean_reward=inside,
        mean_reward_others=outside,
        solved=None if evidence.run.solved is None else int((evidence.run.solved & mask).sum()),
        stake=_stake(detector.category, mask, evidence),
        examples=_examples(columns.task[mask], columns.repeat[mask]),
        filters=selection.filters,
    )


def attempt_finding(detector: Detector, selection: AttemptSelection, evidence: Evidence) -> Finding:
    """Return the finding of a selection of attempts, which must not be empty."""
    count, of = len(selection.task), selection.of
    tasks = len(np.unique(selection.task))
    # Attempts of one task fail together, so each task counts as one trial.
    trials = len(np.union1d(evidence.columns.task, evidence.failed.task))
    bounds = share_bounds(count / of, trials)
    share = Estimate(mean=count / of, low=bounds[0] if bounds else None, high=bounds[1] if bounds else None)
    return Finding(
        kind=detector.kind,
        title=detector.title,
        category=detector.category,
        sentence=_sentence(count, of, "attempts", selection.what, share, None, None),
        definition=detector.definition,
        unit="attempts",
        count=count,
        of=of,
        tasks=tasks,
        share=share,
        stake=min(1.0, _UNCERTAIN * count / of),
        examples=_examples(selection.task, selection.repeat),
    )


def _stake(category: Category, mask: Flags, evidence: Evidence) -> float:
    """Estimate the share of the run's possible reward that a selection concerns.

    What exploits earned above the lowest reward is in question. Other rollouts cost the difference to the rest.
    """
    low, high = evidence.span
    share = float(mask.mean())
    if category is Category.TRAINING:
        return _NO_GRADIENT * share
    if category is Category.FAILURE:
        return _UNCERTAIN * share
    if high <= low:
        # Where every rollout has the same reward, exploits may be the reason.
        return share if category is Category.EXPLOIT else 0.0
    inside = _clipped(evidence.value[mask], low, high)
    if category in (Category.EXPLOIT, Category.REWARD):
        return share * inside
    if mask.all():
        return 0.0
    return _UNCERTAIN * share * max(0.0, _clipped(evidence.value[~mask], low, high) - inside)


def _clipped(values: Floats, low: float, high: float) -> float:
    return float(np.mean((np.clip(values, low, high) - low) / (high - low)))


def _mean(values: Floats, tasks: Ints, *, is_share: bool = False) -> Estimate:
    return clustered_mean(values, np.flatnonzero(np.diff(tasks, prepend=-1)), is_share=is_share)


def _sentence(
    count: int, of: int, unit: str, what: str, share: Estimate, inside: Estimate | None, outside: Estimate | None
) -> str:
    text = f"{share.mean:.1%} of the {unit} ({count:,} of {of:,}) {what}"
    if inside is None:
        return f"{text}."
    against = f" against {short(outside.mean)} for all others" if outside is not None else ""
    return f"{text}: mean reward {short(inside.mean)}{against}."


def _examples(task: Ints, repeat: Ints) -> list[Example]:
    """Return examples of different tasks if there are enough: the first, one from the middle, the last."""
    _, first = np.unique(task, return_index=True)
    chosen = first if len(first) >= _EXAMPLES else np.arange(len(task))
    spread = np.unique(np.linspace(0, len(chosen) - 1, min(_EXAMPLES, len(chosen))).round().astype(np.intp))
    return [Example(task=int(task[at]), repeat=int(repeat[at])) for at in chosen[spread].tolist()]
