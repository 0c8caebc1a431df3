"""Defines the record of a finding. All texts are plain; renderers must escape them."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from rollyard.analysis.metrics.estimate import Estimate
from rollyard.records.types import Record


class Category(StrEnum):
    """What a finding is about, and therefore how it is ranked."""

    EXPLOIT = "exploit"
    """Rollouts were rewarded although they look as if the verifier was deceived."""
    REWARD = "reward"
    """The reward and the success of rollouts contradict each other."""
    BEHAVIOUR = "behaviour"
    """The policy does something that costs reward, such as giving up."""
    FORMAT = "format"
    """The environment cannot use what the policy writes."""
    TRAINING = "training"
    """Rollouts that teach the policy nothing."""
    FAILURE = "failure"
    """The stack or an environment fails."""


class Example(Record):
    """A rollout that shows the finding."""

    task: int
    repeat: int


class Finding(Record):
    """One observation about a run."""

    kind: str
    """Identifies the detector, such as `no_tool_used`."""
    title: str
    category: Category
    sentence: str
    """The observation with its figures, as one sentence."""
    definition: str
    """What is counted, with the threshold and the reason for it."""
    unit: str = "rollouts"
    """What is counted: `rollouts` or `attempts`."""
    count: int
    of: int
    """Number of measured rollouts, or of attempts, among which the detector looked."""
    tasks: int
    """Number of tasks to which the counted rollouts belong."""
    share: Estimate
    """`count` / `of` with its 95% interval, clustered by task."""
    mean_reward: Estimate | None = None
    """Mean reward of the counted rollouts; None if rewards are not comparable or nothing is measured."""
    mean_reward_others: Estimate | None = None
    """Mean reward of the other rollouts."""
    solved: int | None = None
    """Number of counted rollouts that solved their task; None if "solved" is undefined."""
    stake: float = Field(ge=0.0, le=1.0)
    """Estimate of the share of the run's rewards that the finding concerns. Findings are sorted by it."""
    examples: list[Example] = Field(default_factory=list)
    """Up to three rollouts of different tasks."""
    filters: dict[str, str] = Field(default_factory=dict)
    """Filters of the viewer's list that select exactly these rollouts; empty if none do."""


class Findings(Record):
    """The findings of a run, most important first."""

    findings: list[Finding]
    rollouts: int
    """Number of measured rollouts that were examined."""
