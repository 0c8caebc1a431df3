"""Potential-based shaping: nearer to the solution is worth more, and going round in a circle is worth nothing."""

from __future__ import annotations

from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.resources_servers.grl_sokoban.game import STEP_COST, Room
from rollyard.resources_servers.grl_sokoban.solver import UnsolvableRoom, fewest_moves


class ShapingSettings(BaseModel):
    """A step from s to s' earns gamma * phi(s') - phi(s) more, with phi = -(optimal moves left) / scale."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gamma: float = Field(default=1.0, gt=0, le=1)
    """The trainer's discount. At 1 all that a play earns this way is phi(its end) - phi(its start)."""
    scale: float = Field(default=10.0, gt=0)
    """So many moves nearer to the solution are worth 1."""
    most_moves: int = Field(default=50, ge=1)
    """No position counts as further away; a lost one, and one that the solver cannot decide, is as far as that."""

    @property
    def bound(self) -> float:
        """The potential lies between minus this and 0."""
        return self.most_moves / self.scale

    @model_validator(mode="after")
    def _waiting_costs(self) -> ShapingSettings:
        """A blocked move far from the solution earns (1 - gamma) * bound: it must stay below what a step costs."""
        if (1 - self.gamma) * self.bound >= STEP_COST:
            least = 1 - STEP_COST / self.bound
            raise ValueError(
                f"gamma {self.gamma:g} would pay for standing still: (1 - gamma) * most_moves / scale must be below "
                f"{STEP_COST:g}, the cost of a step; take a gamma above {least:g}, fewer most_moves or a larger scale"
            )
        return self


class Shaping:
    """What one episode earns beside its game."""

    def __init__(self, settings: ShapingSettings, solver_states: int, start: Room) -> None:
        self._settings = settings
        self._states = solver_states
        self._potential = self.potential(start)
        self.total = 0.0

    def potential(self, position: Room) -> float:
        """phi: from minus the bound to 0, which is a solved position's."""
        left = _moves_left(position, self._states)
        most = self._settings.most_moves
        return -(most if left is None else min(left, most)) / self._settings.scale

    def arrive(self, position: Room) -> float:
        """What the step to this position earns."""
        after = self.potential(position)
        earned = self._settings.gamma * after - self._potential
        self._potential = after
        self.total += earned
        return earned


@lru_cache(maxsize=16384)
def _moves_left(room: Room, most_states: int) -> int | None:
    """None: lost, or not known. Kept, because the repeats of a task pass through the same positions."""
    try:
        return fewest_moves(room, most_states)
    except UnsolvableRoom:
        return None
