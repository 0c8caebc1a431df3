"""The Sokoban environment: a `step` tool, an optional `undo` tool, and a verdict that includes the optimum."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rollyard.records.rewards import VerdictField, tidy
from rollyard.records.types import Json
from rollyard.resources_servers.base import (
    BadTask,
    Environment,
    InvalidToolCall,
    Turn,
    Verdict,
    Verification,
    serve,
    tool,
)
from rollyard.resources_servers.checks import Integer
from rollyard.resources_servers.grl_sokoban.game import BOX, STEP_COST, Game, Room, View, parse_action
from rollyard.resources_servers.grl_sokoban.solver import UnsolvableRoom, fewest_moves, is_deadlocked
from rollyard.resources_servers.grl_sokoban.task import ShapingSettings, SokobanSettings, puzzle_of, read_task


class GameEpisode:
    """One episode. With the default settings, it behaves exactly like its `Game`."""

    def __init__(self, start: Room, max_steps: int, settings: SokobanSettings) -> None:
        self.game = Game(start, max_steps)
        self._settings = settings
        self._tracks_positions = settings.undo or settings.deadlock is not None or settings.shaping is not None
        self._before: list[Room] = []
        self._here = start
        self._covered_at_start = self.game.boxes_on_target
        self._shaping = Shaping(settings.shaping, settings.solver_states, start) if settings.shaping else None
        self.lost: bool | None = self._is_lost() if settings.deadlock else None
        """Whether the position can no longer be solved; None if unknown or not checked."""
        self.over = self.game.done or self.ended_lost
        """Whether the episode has ended: solved, out of steps, or lost with the setting `deadlock: end`."""

    @property
    def ended_lost(self) -> bool:
        return self.lost is True and self._settings.deadlock == "end"

    @property
    def total_reward(self) -> float:
        return self.game.total_reward if self._shaping is None else self.game.total_reward + self._shaping.total

    @property
    def shaped(self) -> float | None:
        """The part of `total_reward` that comes from shaping; None if shaping is disabled."""
        return None if self._shaping is None else self._shaping.total

    @property
    def undoable(self) -> int:
        """Number of moves that can be undone: those that moved the player and have not been undone yet."""
        return len(self._before)

    def move(self, action: int) -> float:
        step = self.game.step(action)
        if not self._tracks_positions:
            self.over = step.done
            return step.reward
        before = self._here
        if step.effective:
            self._before.append(before)
            self._here = self.game.position()
        return step.reward + self._arrived(before)

    def undo(self) -> float:
        before, self._here = self._here, self._before.pop()
        return self.game.back_to(self._here) + self._arrived(before)

    def reward(self) -> float:
        if not self._settings.charge_unplayed or self.game.success:
            return self.total_reward
        if self.game.steps:
            return self.total_reward - STEP_COST * (self.game.max_steps - self.game.steps)
        # One step below the lowest reward of any other episode; a step is more than the rounding error.
        bound = self._settings.shaping.bound if self._settings.shaping else 0.0
        return -STEP_COST * (self.game.max_steps + 1) - self._covered_at_start - bound

    def _arrived(self, before: Room) -> float:
        # Only a push can cause a deadlock.
        boxes, moved = (bytes(code == BOX for code in room.state) for room in (before, self._here))
        if self._settings.deadlock and boxes != moved:
            self.lost = self._is_lost()
        self.over = self.game.done or self.ended_lost
        return self._shaping.arrive(self._here) if self._shaping else 0.0

    def _is_lost(self) -> bool | None:
        return is_deadlocked(self._here, self._settings.solver_states)


class Shaping:
    def __init__(self, settings: ShapingSettings, solver_states: int, start: Room) -> None:
        self._settings = settings
        self._states = solver_states
        self._potential = self.potential(start)
        self.total = 0.0

    def potential(self, position: Room) -> float:
        left, most = _moves_left(position, self._states), self._settings.most_moves
        return -(most if left is None else min(left, most)) / self._settings.scale

    def arrive(self, position: Room) -> float:
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


_ACTION_TAG = re.compile(r"<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)
_BARE_ACTION = re.compile(r"\b(up|down|left|right|[1-4])\b", re.IGNORECASE)
_LEGEND = "# wall, _ floor, O target, X box, √ box on target, P player, S player on target\n"


class GrlSokoban(Environment[SokobanSettings]):
    """Push every box onto a target."""

    verdict_fields = (
        VerdictField(path="moves", role="outcome"),
        VerdictField(path="optimal_moves", role="outcome"),
        VerdictField(path="boxes_on_target", role="outcome", label="boxes on targets"),
        VerdictField(path="deadlocked", role="outcome"),
        VerdictField(path="shaping_reward", role="component", label="shaping"),
    )
    stateless = False

    def __init__(self, task: Mapping[str, Any], settings: SokobanSettings) -> None:
        """Create the row's room. Raises BadTask if the room is impossible or too large."""
        super().__init__(task, settings)
        row = read_task(task)
        puzzle = puzzle_of(row, settings)
        self.max_steps = row.max_steps or settings.max_steps
        self.room, self.optimum = puzzle.room, puzzle.optimum
        self.episode = GameEpisode(puzzle.room, self.max_steps, settings)
        self.view = View(settings.observations, settings.tile_px)

    @classmethod
    def offers(cls, name: str, settings: SokobanSettings) -> bool:
        return name != "undo" or settings.undo

    @tool
    async def step(self, actions: list[str | int]) -> Json | list[Json]:
        """Execute Sokoban moves in order: Up, Down, Left, Right (or 1 to 4). An empty list looks without moving."""
        try:
            moves = [parse_action(action) for action in actions]
        except ValueError as error:
            raise InvalidToolCall(str(error)) from error
        return self._answer(self._moved(moves))

    @tool
    async def undo(self, moves: Integer = 1) -> Json | list[Json]:
        """Take back the last moves, so many of them. Each one taken back costs a step, like a move."""
        if self.episode.over:
            return self._answer(0.0)
        if not 1 <= moves <= self.episode.undoable:
            raise InvalidToolCall(f"cannot undo {moves} moves: only {self.episode.undoable} can be undone")
        return self._answer(sum((self.episode.undo() for _ in range(moves) if not self.episode.over), 0.0))

    def _moved(self, moves: list[int]) -> float:
        reward = 0.0
        for move in moves:
            if not self.episode.over:
                reward += self.episode.move(move)
        return reward

    def _answer(self, reward: float) -> Json | list[Json]:
        game = self.episode.game
        state: Json = {
            "reward": _tidy(reward),
            "total_reward": _tidy(self.episode.total_reward),
            "done": self.episode.over,
            "steps": game.steps,
        }
        if self.settings.deadlock:
            state["deadlocked"] = self.episode.lost
        return self.view.answer(game.board(), state)

    async def reset(self) -> tuple[str, Json]:
        """Return the board and the answer format. Raises BadTask for settings that turn-based mode does not support."""
        if "image" in self.settings.observations:
            raise BadTask("turn-based mode does not support images; set observations to text, coordinates or both")
        if self.settings.charge_unplayed:
            raise BadTask("turn-based mode does not support charge_unplayed; set it to false")
        instruction = "Answer each turn with one move: <action>Up</action>, <action>Down</action>, Left or Right."
        legend = _LEGEND if "text" in self.settings.observations else ""
        return f"{self._shown()}\n\n{legend}{instruction}", self._info()

    async def turn(self, text: str) -> Turn:
        """Execute one move from the model's message. A message without a move costs nothing and returns a hint."""
        move = read_move(text)
        if move is None:
            hint = "No move found in your message. Answer with <action>Up</action>, Down, Left or Right."
            return Turn(f"{hint}\n\n{self._shown()}", 0.0, False, False, self._info())
        reward = self._moved([move])
        terminated = self.episode.game.success or self.episode.ended_lost
        return Turn(self._shown(), reward, terminated, self.episode.over and not terminated, self._info())

    async def verify(self, response: Verification) -> Verdict:
        game, optimum = self.episode.game, self.optimum
        fields = {
            **self._info(),
            "moves": game.steps,
            "optimal_moves": optimum.moves if optimum else None,
            "optimal_pushes": optimum.pushes if optimum else None,
            "deadlocked": False if game.success else is_deadlocked(game.position(), self.settings.solver_states),
            "room_seed": self.room.seed,
        }
        if self.episode.shaped is not None:
            fields["shaping_reward"] = tidy(self.episode.shaped)
        return Verdict(reward=self.episode.reward(), **fields)

    def _shown(self) -> str:
        return self.view.text(self.episode.game.board())

    def _info(self) -> Json:
        game = self.episode.game
        info = {"success": game.success, "boxes_on_target": game.boxes_on_target, "done": self.episode.over}
        return {**info, "deadlocked": self.episode.lost} if self.settings.deadlock else info


_tidy = lru_cache(maxsize=4096)(tidy)
"""Cached, because most sums of rewards are of a few costs and bonuses."""


def read_move(text: str) -> int | None:
    """Parse the move from a message: the first `<action>` tag or, without a tag, the first bare direction or digit.

    Returns None if there is no valid move.
    """
    tag = _ACTION_TAG.search(text)
    found = tag.group(1) if tag else next((match.group(1) for match in _BARE_ACTION.finditer(text)), "")
    try:
        return parse_action(found)
    except ValueError:
        return None


server = serve(GrlSokoban)
