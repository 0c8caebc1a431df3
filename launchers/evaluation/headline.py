"""Headline: the figures of one evaluation that a table over several evaluations shows."""

from __future__ import annotations

from pathlib import Path

from rollyard.analysis.metrics.estimators import Estimate
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.records.types import Record


class Headline(Record):
    """Coverage and metrics of a rollout file. A metric that is not defined for the file is absent."""

    measured: int
    expected: int | None
    """Number of expected rollouts; None if unknown."""
    metrics: dict[str, Estimate]
    """By name, in the order of a table's columns: `reward`, `solve_rate`, `pass@1`, ..."""

    @property
    def is_complete(self) -> bool:
        return self.expected is not None and self.measured >= self.expected

    @property
    def coverage(self) -> str:
        """The coverage as text: `800 of 800`."""
        return f"{self.measured:,} of {'?' if self.expected is None else f'{self.expected:,}'}"


def headline(rollouts: Path, *, pass_threshold: float | None = None) -> Headline:
    """Return the headline of a rollout file. Raises OperatorError or RunError if the file cannot be read."""
    if not rollouts.exists():
        return Headline(measured=0, expected=None, metrics={})
    return headline_of(load(rollouts, pass_threshold=pass_threshold).profile)


def headline_of(profile: Profile) -> Headline:
    metrics: dict[str, Estimate] = {}
    if profile.rewards is not None and not profile.rewards.why_no_mean:
        metrics["reward"] = profile.rewards.mean
    if profile.solved is not None:
        metrics["solve_rate"] = profile.solved.rate
    if profile.tasks is not None:
        # pass@1 is the solve rate with equal weights per task; powers of two keep the table narrow.
        shown = [one for one in profile.tasks.pass_at if one.k & (one.k - 1) == 0 and one.k > 1]
        metrics |= {f"pass@{one.k}": one.any for one in shown}
        metrics |= {f"cons@{one.k}": one.consensus for one in shown if one.consensus is not None}
    return Headline(measured=profile.coverage.measured, expected=profile.coverage.expected, metrics=metrics)


def formatted(estimate: Estimate | None) -> str:
    """Return `0.135 [0.120, 0.150]`; a dash if the metric is not defined."""
    if estimate is None:
        return "-"
    bounds = "" if estimate.low is None or estimate.high is None else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.mean:.3f}{bounds}"
