"""Implements potential-based reward shaping, which rewards progress towards the solution but not moving in circles."""

from __future__ import annotations

from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.resources_servers.grl_sokoban.game import STEP_COST, Room
from rollyard.resources_servers.grl_sokoban.solver import UnsolvableRoom, fewest_moves


class ShapingSettings(BaseModel):
    """A step from s to s' earns an additional gamma * phi(s') - phi(s), with phi = -(optimal moves left) / scale."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gamma: float = Field(default=1.0, gt=0, le=1)
    """The trainer's discount factor. If it is 1, the total shaping reward is phi(end) - phi(start)."""
    scale: float = Field(default=10.0, gt=0)
    """Number of moves towards the solution that earn a reward of 1."""
    most_moves: int = Field(default=50, ge=1)
    """Upper limit for the number of moves left. Also used if the position is unsolvable or the solver gives up."""

    @property
    def bound(self) -> float:
        """Bound of the potential, which is between -bound and 0."""
        return self.most_moves / self.scale

    @model_validator(mode="after")
    def _check_gamma(self) -> ShapingSettings:
        """Check that a blocked move far from the solution costs more than the (1 - gamma) * bound that it earns."""
        if (1 - self.gamma) * self.bound >= STEP_COST:
            least = 1 - STEP_COST / self.bound
            raise ValueError(
                f"gamma {self.gamma:g} would reward standing still: (1 - gamma) * most_moves / scale must be "
                f"below {STEP_COST:g}, the cost of a step; use a gamma above {least:g}, a smaller most_moves or a "
                "larger scale"
            )
        return self


class Shaping:
    """The shaping reward of one episode."""

    def __init__(self, settings: ShapingSettings, solver_states: int, start: Room) -> None:
        self._settings = settings
        self._states = solver_states
        self._potential = self.potential(start)
        self.total = 0.0

    def potential(self, position: Room) -> float:
        """Return phi, which is between -bound and 0; it is 0 for a solved position."""
        left = _moves_left(position, self._states)
        most = self._settings.most_moves
        return -(most if left is None else min(left, most)) / self._settings.scale

    def arrive(self, position: Room) -> float:
        """Return the shaping reward for the step to this position."""
        after = self.potential(position)
        earned = self._settings.gamma * after - self._potential
        self._potential = after
        self.total += earned
        return earned


@lru_cache(maxsize=16384)
def _moves_left(room: Room, most_states: int) -> int | None:
    """Return the minimum number of moves left; None if the position is unsolvable or the solver gives up.

    Cached because the rollouts of a task reach the same positions.
    """
    try:
        return fewest_moves(room, most_states)
    except UnsolvableRoom:
        return None
