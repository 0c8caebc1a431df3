"""Settings of the Sokoban environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rollyard.resources_servers.base import EnvironmentSettings
from rollyard.resources_servers.checks import no_bool
from rollyard.resources_servers.grl_sokoban.game import STEP_COST
from rollyard.resources_servers.grl_sokoban.observation import Observation


class ShapingSettings(BaseModel):
    """Potential-based reward shaping, which rewards progress but not moving in circles.

    A step from s to s' earns an additional gamma * phi(s') - phi(s), with phi = -(optimal moves left) / scale.
    """

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


class SokobanSettings(EnvironmentSettings):
    """Optional features, and limits on the room that a row may request.

    Without limits, one huge room would block all other sessions. With the default settings, the environment behaves
    like the reference implementation.
    """

    max_rows: int = Field(default=10, ge=3)
    """Maximum number of rows and columns of a room, including walls."""
    max_boxes: int = Field(default=4, ge=1)
    max_search_depth: int = Field(default=300, ge=1)
    solver_states: int = Field(default=50_000, ge=1)
    """Maximum number of positions that a search for the optimum visits. The default takes at most about 0.3 s. If a
    search reaches the limit, the optimum is null. The first hundred rooms of the public dataset need fewer than 2,000.
    """
    max_steps: int = Field(default=100, ge=1, le=1000)
    """Maximum number of moves per episode, up to 1,000. A row's `max_steps` overrides it."""
    levels_folder: Path | None = None
    """Folder with the level files that rows specify in `level_file`. If it is not set, such rows are rejected."""
    observations: tuple[Observation, ...] = ("text",)
    """Observations for the model: one or more of text, coordinates, image."""
    tile_px: int = Field(default=32, ge=8, le=64)
    """Width and height of a cell in an image, in pixels."""
    undo: bool = False
    """Offer the `undo` tool, which undoes moves at the cost of one step each."""
    deadlock: Literal["flag", "end"] | None = None
    """flag: every response states whether the room can no longer be solved. end: the episode also ends when this is the
    case. The verdict always states it."""
    shaping: ShapingSettings | None = None
    """Additional reward that depends on the distance to the solution; null disables it."""
    charge_unplayed: bool = False
    """Charge an unsolved episode for its unused steps. An episode without any step gets a lower reward
    than any other."""

    @field_validator(
        "max_rows", "max_boxes", "max_search_depth", "solver_states", "tile_px", "max_steps", mode="before"
    )
    @classmethod
    def _no_bool(cls, number: Any) -> Any:
        return no_bool(number)

    @field_validator("observations")
    @classmethod
    def _no_duplicates(cls, kinds: tuple[Observation, ...]) -> tuple[Observation, ...]:
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError("expected one or more of text, coordinates and image, without duplicates")
        return kinds

    @field_validator("levels_folder")
    @classmethod
    def _exists(cls, folder: Path | None) -> Path | None:
        if folder is not None and not folder.is_dir():
            raise ValueError("the folder does not exist; create it, or set the folder that contains the level files")
        return folder
