"""Scale: what rewards of a data set mean, as far as its rollouts show; whether several may be averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NO_NAME = "rows of no data set"
"""How rows without a `dataset_name` are called where others have one."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The rewards of one data set."""

    low: float
    high: float
    unlike_success: int
    """Rollouts that report success with another reward than 1, or failure with a reward of 1."""
    agents: frozenset[str]
    """With an empty name where rows name none."""

    @property
    def is_unit(self) -> bool:
        """Rewards in 0..1 of which 1 means success."""
        return self.low >= 0 and self.high <= 1 and not self.unlike_success


def why_not_comparable(scales: Mapping[str, Scale]) -> str:
    """Why rewards of these data sets have no common mean; empty where they have one.

    They have one where a single agent, which the rows name, plays all of them, so that one environment gives every
    reward; or where all rewards lie in 0..1 and 1 means success.
    """
    agents = {agent for scale in scales.values() for agent in scale.agents}
    odd = [name for name, scale in sorted(scales.items()) if not scale.is_unit]
    one_agent = len(agents) == 1 and "" not in agents
    if len(scales) < 2 or one_agent or not odd:
        return ""
    scale = scales[odd[0]]
    found = f"in {odd[0]} they go from {scale.low:.4g} to {scale.high:.4g}"
    if scale.low >= 0 and scale.high <= 1:
        found = f"in {odd[0]} a reward of 1 is not what success means"
    return f"rewards of the data sets are on different scales ({found})"
