"""Infers the reward scale of a dataset from its rollouts, and checks whether rewards of several datasets can be
averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NO_NAME = "rows without a dataset_name"
"""Display name of rows without a `dataset_name` if other rows have one."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The reward scale of one dataset."""

    low: float
    high: float
    unlike_success: int
    """Number of rollouts that report success with a reward other than 1, or failure with a reward of 1."""
    agents: frozenset[str]
    """Names of the agents; includes '' if a row does not name its agent."""

    @property
    def is_unit(self) -> bool:
        """Whether rewards are in 0..1 and 1 means success."""
        return self.low >= 0 and self.high <= 1 and not self.unlike_success


def why_not_comparable(scales: Mapping[str, Scale]) -> str:
    """Return why the rewards of these datasets cannot be averaged; empty if they can be.

    Rewards can be averaged in two cases: if the rows name the same agent for all datasets, because all rewards then
    come from the same environment; or if all rewards are in 0..1 and 1 means success.
    """
    agents = {agent for scale in scales.values() for agent in scale.agents}
    other = [name for name, scale in sorted(scales.items()) if not scale.is_unit]
    one_agent = len(agents) == 1 and "" not in agents
    if len(scales) < 2 or one_agent or not other:
        return ""
    scale = scales[other[0]]
    reason = f"in {other[0]} they range from {scale.low:.4g} to {scale.high:.4g}"
    if scale.low >= 0 and scale.high <= 1:
        reason = f"in {other[0]} a reward of 1 does not mean success"
    return f"the datasets have different reward scales ({reason})"
