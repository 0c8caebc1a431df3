"""Parses the task in a row, which specifies its room by a seed, a board, or a level in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rollyard.resources_servers.base import BadTask
from rollyard.resources_servers.checks import Integer
from rollyard.resources_servers.grl_sokoban.game import BOX, Room
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate
from rollyard.resources_servers.grl_sokoban.levels import InvalidLevel, levels_of, read_level
from rollyard.resources_servers.grl_sokoban.settings import SokobanSettings
from rollyard.resources_servers.grl_sokoban.solver import Solution, UnsolvableRoom, solve
from rollyard.resources_servers.grl_sokoban.symmetry import Symmetry, SymmetryName


class SokobanTask(BaseModel):
    """A row's puzzle. Exactly one of seed, level and level_file determines its room."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    seed: Integer | None = Field(default=None, ge=0, lt=2**32)
    dim_room: tuple[Integer, Integer] = (6, 6)
    num_boxes: Integer = Field(default=1, ge=1)
    search_depth: Integer = Field(default=100, ge=1)
    level: str | None = Field(default=None, max_length=10_000)
    """A board as text, in the symbols of `Room.board` or .xsb."""
    level_file: str | None = Field(default=None, max_length=200, pattern=r"^[^\x00]+$")
    """Path of a level file, relative to the server's `levels_folder`."""
    level_index: Integer | None = Field(default=None, ge=0)
    """Number of the level in the file, starting at 0."""
    symmetry: SymmetryName = "same"
    """Rotation or reflection applied to the room."""
    max_steps: Integer | None = Field(default=None, ge=1, le=1000)

    @model_validator(mode="after")
    def _one_room(self) -> SokobanTask:
        found = [name for name in ("seed", "level", "level_file") if getattr(self, name) is not None]
        if len(found) != 1:
            raise ValueError(f"found {' and '.join(found) or 'no room'}; set exactly one of seed, level and level_file")
        if (self.level_file is None) != (self.level_index is None):
            raise ValueError("level_file and level_index must be set together")
        return self


@dataclass(frozen=True)
class Puzzle:
    room: Room
    optimum: Solution | None
    """None if the search reached its limit before it found the optimum."""


def read_task(row: Mapping[str, Any]) -> SokobanTask:
    """Parse the row's Sokoban fields. Raises BadTask if they are invalid."""
    try:
        return SokobanTask.model_validate(dict(row))
    except ValidationError as error:
        problems = (
            ": ".join([*map(str, problem["loc"][:1]), problem["msg"].removeprefix("Value error, ")])
            for problem in error.errors(include_url=False)
        )
        raise BadTask(f"not a Sokoban row: {'; '.join(problems)}") from error


def puzzle_of(task: SokobanTask, settings: SokobanSettings) -> Puzzle:
    """Return the task's room and its optimum. Raises BadTask if the room is invalid or exceeds the server's limits."""
    try:
        puzzle = _from_seed(task, settings) if task.seed is not None else _from_level(task, settings)
    except (InfeasibleRoom, InvalidLevel) as error:
        raise BadTask(str(error)) from error
    if task.symmetry == "same":
        return puzzle
    symmetry = Symmetry.named(task.symmetry)
    return Puzzle(symmetry.room(puzzle.room), puzzle.optimum and symmetry.solution(puzzle.optimum))


@lru_cache(maxsize=4096)
def prepared(spec: RoomSpec, solver_states: int = 50_000) -> Puzzle:
    """Return the puzzle for a specification. Raises InfeasibleRoom if there is none.

    Cached because all rollouts of a task use the same puzzle.
    """
    room = generate(spec)
    return Puzzle(room, solve(room, solver_states))


@lru_cache(maxsize=4096)
def _solved(room: Room, solver_states: int) -> Puzzle:
    return Puzzle(room, solve(room, solver_states))


def _from_seed(task: SokobanTask, settings: SokobanSettings) -> Puzzle:
    _check_limits(task.dim_room, task.num_boxes, settings)
    if task.search_depth > settings.max_search_depth:
        raise BadTask(_over("search_depth", task.search_depth, settings.max_search_depth))
    assert task.seed is not None
    spec = RoomSpec(task.seed, task.dim_room, task.num_boxes, task.search_depth)
    return prepared(spec, settings.solver_states)


def _from_level(task: SokobanTask, settings: SokobanSettings) -> Puzzle:
    if task.level is not None:
        name, room = "level", read_level(task.level)
    else:
        assert task.level_file is not None and task.level_index is not None
        name = f"{task.level_file}, level {task.level_index}"
        room = _level_from_file(task.level_file, task.level_index, settings.levels_folder)
    _check_limits((room.rows, room.cols), room.state.count(BOX), settings)
    try:
        return _solved(room, settings.solver_states)
    except UnsolvableRoom as error:
        raise BadTask(f"{name}: {error}") from error


def _level_from_file(name: str, index: int, folder: Path | None) -> Room:
    if folder is None:
        raise BadTask(f"the row has level_file {name!r}, but the setting levels_folder is not set on this server")
    root = folder.resolve()
    path = (root / name).resolve()
    # Resolved first, so that neither `..` nor a symbolic link can escape from the folder.
    if not path.is_relative_to(root) or not path.is_file():
        raise BadTask(f"level_file {name!r} is not a file in this server's levels_folder")
    levels = levels_of(path)
    if index >= len(levels):
        raise BadTask(
            f"level_index {index} of {name!r} does not exist: the file has {len(levels)} levels, numbered from 0"
        )
    return levels[index].room()


def _check_limits(size: tuple[int, int], boxes: int, settings: SokobanSettings) -> None:
    for name, found, limit in (
        ("dim_room", max(size), settings.max_rows),
        ("num_boxes", boxes, settings.max_boxes),
    ):
        if found > limit:
            raise BadTask(_over(name, found, limit))


def _over(name: str, found: int, limit: int) -> str:
    return f"{name} {found} exceeds this server's limit of {limit} (a setting of the environment)"
