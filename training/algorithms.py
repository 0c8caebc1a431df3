"""Algorithms by name, as the settings of TRL's GRPOTrainer (1.16) that compute their losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollyard.records.errors import OperatorError
from rollyard.training.groups.advantages import Scale

NO_CLIPPING = 1e9
"""An epsilon so large that no ratio is clipped."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A policy gradient loss over the ratios of new to recorded token probabilities, and its advantages."""

    loss_type: Literal["grpo", "dr_grpo", "dapo", "cispo"]
    """TRL's name of the average: over each sequence's tokens and then over sequences (grpo), over all tokens of the
    update (dapo, cispo), or each sequence's sum divided by a constant, and then over sequences (dr_grpo)."""
    ratio: Literal["token", "sequence"] = "token"
    """`sequence`: the geometric mean of a sequence's token ratios."""
    epsilon: float = 0.2
    """Ratios are clipped at 1 - epsilon."""
    epsilon_high: float = 0.2
    """Ratios are clipped at 1 + epsilon_high. For `cispo`, the maximum ratio itself."""
    scale: Scale = "group"
    """Standard deviation by which advantages are divided."""
    beta: float = 0.0
    """Weight of the KL divergence from the initial policy, which TRL multiplies by the ratio (arXiv 2512.02556)."""


ALGORITHMS = {
    # arXiv 2402.03300; the asymmetric interval is that of Ludic, whose scripts use the name.
    "grpo": Algorithm("grpo", epsilon_high=0.27),
    # arXiv 2503.20783: neither the standard deviation nor the length of a sequence weighs its gradient.
    "dr_grpo": Algorithm("dr_grpo", epsilon=NO_CLIPPING, epsilon_high=NO_CLIPPING, scale="none"),
    # arXiv 2503.14476
    "dapo": Algorithm("dapo", epsilon_high=0.28),
    # arXiv 2507.18071
    "gspo": Algorithm("grpo", ratio="sequence", epsilon=3e-4, epsilon_high=4e-4),
    # arXiv 2506.13585; the maximum ratio is that of Ludic.
    "cispo": Algorithm("cispo", epsilon_high=1.2),
    # arXiv 2510.13786: the loss of cispo, with the standard deviation of the batch.
    "scalerl": Algorithm("cispo", epsilon_high=5.0, scale="batch"),
    # Williams 1992, with the group's mean as baseline.
    "reinforce_baseline": Algorithm("dapo", epsilon=NO_CLIPPING, epsilon_high=NO_CLIPPING, scale="none"),
}
"""Losses by the names of the field and of the scripts that Rollyard's commands replace."""

_ALIASES = {"drgrpo": "dr_grpo"}


def algorithm_named(name: str) -> Algorithm:
    """Return the algorithm with this name. Raises OperatorError if there is none."""
    known = ALGORITHMS.get(_ALIASES.get(name, name))
    if known is None:
        raise OperatorError(f"unknown algorithm {name!r}; expected one of {', '.join(ALGORITHMS)}")
    return known
