"""The environment's settings, and the task of a row: its room, given by a seed, a board, or a level in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from rollyard.resources_servers.base import BadTask, EnvironmentSettings
from rollyard.resources_servers.checks import Integer, no_bool
from rollyard.resources_servers.grl_sokoban.game import BOX, DOWN, LEFT, RIGHT, STEP_COST, UP, Observation, Room
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate
from rollyard.resources_servers.grl_sokoban.levels import InvalidLevel, levels_of, read_level
from rollyard.resources_servers.grl_sokoban.solver import Solution, UnsolvableRoom, solve

Limit = Annotated[int, BeforeValidator(no_bool)]


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

    max_rows: Limit = Field(default=10, ge=3)
    """Maximum number of rows and columns of a room, including walls."""
    max_boxes: Limit = Field(default=4, ge=1)
    max_search_depth: Limit = Field(default=300, ge=1)
    solver_states: Limit = Field(default=50_000, ge=1)
    """Maximum number of positions that a search for the optimum visits. The default takes at most about 0.3 s. If a
    search reaches the limit, the optimum is null. The first hundred rooms of the public dataset need fewer than 2,000.
    """
    max_steps: Limit = Field(default=100, ge=1, le=1000)
    """Maximum number of moves per episode, up to 1,000. A row's `max_steps` overrides it."""
    levels_folder: Path | None = None
    """Folder with the level files that rows specify in `level_file`. If it is not set, such rows are rejected."""
    observations: tuple[Observation, ...] = ("text",)
    """Observations for the model: one or more of text, coordinates, image."""
    tile_px: Limit = Field(default=32, ge=8, le=64)
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


# The symmetries of a board.

SymmetryName = Literal[
    "same", "turn90", "turn180", "turn270", "mirror", "mirror_turn90", "mirror_turn180", "mirror_turn270"
]
"""Names of the symmetries. The board is first mirrored horizontally, then rotated clockwise by the given angle."""
NAMES: tuple[SymmetryName, ...] = get_args(SymmetryName)

_MIRRORED = {UP: UP, DOWN: DOWN, LEFT: RIGHT, RIGHT: LEFT}
_TURNED = {UP: RIGHT, RIGHT: DOWN, DOWN: LEFT, LEFT: UP}


@dataclass(frozen=True, slots=True)
class Symmetry:
    mirrored: bool
    turns: int
    """Number of clockwise quarter turns."""

    @classmethod
    def named(cls, name: SymmetryName) -> Symmetry:
        index = NAMES.index(name)
        return cls(index >= 4, index % 4)

    def room(self, room: Room) -> Room:
        rows, cols = (room.cols, room.rows) if self.turns % 2 else (room.rows, room.cols)
        fixed, state = (self._cells(codes, room.cols) for codes in (room.fixed, room.state))
        return replace(room, rows=rows, cols=cols, fixed=fixed, state=state)

    def action(self, action: int) -> int:
        action = _MIRRORED[action] if self.mirrored else action
        for _ in range(self.turns):
            action = _TURNED[action]
        return action

    def solution(self, solution: Solution) -> Solution:
        return replace(solution, path=tuple(map(self.action, solution.path)))

    def _cells(self, codes: bytes, cols: int) -> bytes:
        lines = [codes[start : start + cols] for start in range(0, len(codes), cols)]
        if self.mirrored:
            lines = [line[::-1] for line in lines]
        for _ in range(self.turns):
            lines = [bytes(column) for column in zip(*lines[::-1], strict=True)]
        return b"".join(lines)


def distinct(room: Room) -> list[tuple[SymmetryName, Room]]:
    """Return the room's distinct variants and their names. A symmetric board has fewer than eight."""
    images: dict[str, tuple[SymmetryName, Room]] = {}
    for name in NAMES:
        image = Symmetry.named(name).room(room)
        images.setdefault(image.board(), (name, image))
    return list(images.values())


# Tasks.


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
    size, boxes, name = task.dim_room, task.num_boxes, "level"
    try:
        if task.level is not None:
            room = read_level(task.level)
        elif task.level_file is not None:
            name = f"{task.level_file}, level {task.level_index}"
            room = _level_from_file(task.level_file, task.level_index or 0, settings.levels_folder)
        if task.seed is None:
            size, boxes = (room.rows, room.cols), room.state.count(BOX)
        for limited, found, limit in (
            ("dim_room", max(size), settings.max_rows),
            ("num_boxes", boxes, settings.max_boxes),
            ("search_depth", task.search_depth if task.seed is not None else 0, settings.max_search_depth),
        ):
            if found > limit:
                setting = f"this server's limit of {limit} (a setting of the environment)"
                raise BadTask(f"{limited} {found} exceeds {setting}")
        if task.seed is not None:
            puzzle = prepared(RoomSpec(task.seed, size, boxes, task.search_depth), settings.solver_states)
        else:
            puzzle = _solved(room, settings.solver_states)
    except UnsolvableRoom as error:
        raise BadTask(f"{name}: {error}") from error
    except (InfeasibleRoom, InvalidLevel) as error:
        raise BadTask(str(error)) from error
    if task.symmetry == "same":
        return puzzle
    symmetry = Symmetry.named(task.symmetry)
    return Puzzle(symmetry.room(puzzle.room), puzzle.optimum and symmetry.solution(puzzle.optimum))


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
        reason = f"level_index {index} of {name!r} does not exist: the file has {len(levels)} levels, numbered from 0"
        raise BadTask(reason)
    return levels[index].room()


@lru_cache(maxsize=4096)
def prepared(spec: RoomSpec, solver_states: int = 50_000) -> Puzzle:
    """Return the puzzle for a specification, cached for all rollouts of a task. Raises InfeasibleRoom."""
    return _solved(generate(spec), solver_states)


@lru_cache(maxsize=4096)
def _solved(room: Room, solver_states: int) -> Puzzle:
    return Puzzle(room, solve(room, solver_states))
