"""Sokoban as an environment: rooms from seeds, the tool `step`, and a verdict that knows the optimum."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from resources_servers.base import (
    BadTask,
    Environment,
    ToolMistake,
    Turn,
    Verdict,
    Verification,
    WorldSettings,
    hosting,
    tool,
)
from resources_servers.grl_sokoban.game import Game, Room, parse_action
from resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate
from resources_servers.grl_sokoban.solver import Solution, is_deadlocked, solve
from services.types import Json

_ACTION_TAG = re.compile(r"<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)
_BARE_ACTION = re.compile(r"\b(up|down|left|right|[1-4])\b", re.IGNORECASE)
_LEGEND = "# wall, _ floor, O target, X box, √ box on target, P player, S player on target"


class SokobanSettings(WorldSettings):
    """Caps: a row that asks for more is refused, because one huge room would hold up every other session."""

    max_rows: int = 10
    """Most rows and columns of a room, walls included."""
    max_boxes: int = 4
    max_search_depth: int = 300
    solver_states: int = 50_000
    """Positions a search for the optimum may visit, some 0.3 s at the most: beyond it the optimum is null. The first
    hundred public rooms need under 2,000."""
    max_steps: int = 100
    """Moves an episode may take when its row does not say; a row may ask for fewer or more, up to 1,000."""


class SokobanTask(BaseModel):
    """What a row says of its puzzle."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    seed: int = Field(ge=0, lt=2**32)
    dim_room: tuple[int, int] = (6, 6)
    num_boxes: int = Field(default=1, ge=1)
    search_depth: int = Field(default=100, ge=1)
    max_steps: int | None = Field(default=None, ge=1, le=1000)


@dataclass(frozen=True)
class Puzzle:
    """A room and its optimum."""

    room: Room
    optimum: Solution | None
    """None where the search gave up."""


@lru_cache(maxsize=4096)
def prepared(spec: RoomSpec, solver_states: int = 50_000) -> Puzzle:
    """The puzzle of a specification; a task's repeats share it. Raises InfeasibleRoom."""
    room = generate(spec)
    return Puzzle(room, solve(room, solver_states))


class GrlSokoban(Environment[SokobanSettings]):
    """Push every box onto a target."""

    def __init__(self, task: Mapping[str, Any], settings: SokobanSettings) -> None:
        """Make the row's room. Raises BadTask for a row that asks for an impossible or too large one."""
        super().__init__(task, settings)
        puzzle, self.max_steps = _puzzle(task, settings)
        self.room, self.optimum = puzzle.room, puzzle.optimum
        self.game = Game(puzzle.room, self.max_steps)

    @tool
    async def step(self, actions: list[str | int]) -> Json:
        """Execute Sokoban moves in order: Up, Down, Left, Right (or 1 to 4). An empty list looks without moving."""
        try:
            moves = [parse_action(action) for action in actions]
        except ValueError as error:
            raise ToolMistake(str(error)) from error
        return self._play(moves)

    def _play(self, moves: list[int]) -> Json:
        reward = 0.0
        for move in moves:
            if self.game.done:
                break
            reward += self.game.step(move).reward
        return {
            "observation": self.game.board(),
            "reward": reward,
            "total_reward": self.game.total_reward,
            "done": self.game.done,
            "steps": self.game.steps,
        }

    async def reset(self) -> tuple[str, Json]:
        """The board, with words on how to answer."""
        how = "Answer each turn with one move: <action>Up</action>, <action>Down</action>, Left or Right."
        return f"{self.game.board()}\n\n{_LEGEND}\n{how}", self._info()

    async def turn(self, text: str) -> Turn:
        """One move from the model's message; a message without one costs nothing and is told so."""
        move = read_move(text)
        if move is None:
            words = "No move found in your message. Answer with <action>Up</action>, Down, Left or Right."
            return Turn(f"{words}\n\n{self.game.board()}", 0.0, False, False, self._info())
        played = self._play([move])
        solved = self.game.success
        return Turn(self.game.board(), played["reward"], solved, self.game.done and not solved, self._info())

    async def verify(self, response: Verification) -> Verdict:
        """The accumulated reward; beside it how good the play was against the optimum."""
        success = self.game.success
        return Verdict(
            reward=self.game.total_reward,
            **self._info(),
            moves=self.game.steps,
            optimal_moves=self.optimum.moves if self.optimum else None,
            optimal_pushes=self.optimum.pushes if self.optimum else None,
            deadlocked=False if success else is_deadlocked(self.game.position(), self.settings.solver_states),
            room_seed=self.room.seed,
        )

    def _info(self) -> Json:
        return {
            "success": self.game.success,
            "boxes_on_target": self.game.boxes_on_target,
            "done": self.game.done,
        }


def read_move(text: str) -> int | None:
    """The move in a message: the first `<action>` tag's, else the first bare word or digit that is one."""
    tag = _ACTION_TAG.search(text)
    found = tag.group(1) if tag else next((match.group(1) for match in _BARE_ACTION.finditer(text)), "")
    try:
        return parse_action(found)
    except ValueError:
        return None


def _puzzle(task: Mapping[str, Any], settings: SokobanSettings) -> tuple[Puzzle, int]:
    try:
        row = SokobanTask.model_validate(dict(task))
    except ValidationError as error:
        problems = "; ".join(f"{problem['loc'][0]}: {problem['msg']}" for problem in error.errors(include_url=False))
        raise BadTask(f"not a Sokoban row: {problems}") from error
    for what, found, most in (
        ("dim_room", max(row.dim_room), settings.max_rows),
        ("num_boxes", row.num_boxes, settings.max_boxes),
        ("search_depth", row.search_depth, settings.max_search_depth),
    ):
        if found > most:
            raise BadTask(f"{what} {found} is over this server's cap of {most} (a setting of the world)")
    try:
        puzzle = prepared(RoomSpec(row.seed, row.dim_room, row.num_boxes, row.search_depth), settings.solver_states)
    except InfeasibleRoom as error:
        raise BadTask(str(error)) from error
    return puzzle, row.max_steps or settings.max_steps


server = hosting(GrlSokoban)
