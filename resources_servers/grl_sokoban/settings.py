"""Settings of the Sokoban world."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from rollyard.resources_servers.argument_checks import no_bool
from rollyard.resources_servers.base import EnvironmentSettings
from rollyard.resources_servers.grl_sokoban.observation import Observation
from rollyard.resources_servers.grl_sokoban.reward_shaping import ShapingSettings


class SokobanSettings(EnvironmentSettings):
    """Caps first: a row that asks for more is refused, because one huge room would hold up every other session.

    Without a setting the world is that of the reference; each of those after the caps adds one thing to it.
    """

    max_rows: int = Field(default=10, ge=3)
    """Most rows and columns of a room, walls included."""
    max_boxes: int = Field(default=4, ge=1)
    max_search_depth: int = Field(default=300, ge=1)
    solver_states: int = Field(default=50_000, ge=1)
    """Positions a search for the optimum may visit, some 0.3 s at the most: beyond it the optimum is null. The first
    hundred public rooms need under 2,000."""
    max_steps: int = Field(default=100, ge=1, le=1000)
    """Moves an episode may take when its row does not say; a row may ask for fewer or more, up to 1,000."""
    levels_folder: Path | None = None
    """Folder below which a row's `level_file` is looked for; such rows are refused without one."""
    observations: tuple[Observation, ...] = ("text",)
    """What the model is shown, one or more of text, coordinates, image."""
    tile_px: int = Field(default=32, ge=8, le=64)
    """Pixels of a cell in an image, each way."""
    undo: bool = False
    """Offer the tool `undo`, which takes moves back at the price of a step each."""
    deadlock: Literal["flag", "end"] | None = None
    """After every push: say in the answer whether the room is lost (flag), and end a lost episode too (end). The
    verdict says it in any case."""
    shaping: ShapingSettings | None = None
    """Reward by the distance from the solution, beside the game's own."""
    charge_unplayed: bool = False
    """An unsolved episode pays for the steps it did not take; one without any gets less than the worst play."""

    @field_validator(
        "max_rows", "max_boxes", "max_search_depth", "solver_states", "tile_px", "max_steps", mode="before"
    )
    @classmethod
    def _no_bool(cls, number: Any) -> Any:
        return no_bool(number)

    @field_validator("observations")
    @classmethod
    def _each_once(cls, kinds: tuple[Observation, ...]) -> tuple[Observation, ...]:
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError("name one or more of text, coordinates and image, each once")
        return kinds

    @field_validator("levels_folder")
    @classmethod
    def _is_there(cls, folder: Path | None) -> Path | None:
        if folder is not None and not folder.is_dir():
            raise ValueError("there is no such folder; make it, or name one that holds the level files")
        return folder
