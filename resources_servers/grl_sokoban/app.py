"""The Sokoban environment: a `step` tool, an optional `undo` tool, and a verdict that includes the optimum."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollyard.records.rewards import tidy
from rollyard.records.types import Json
from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.argument_checks import Integer
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
from rollyard.resources_servers.grl_sokoban.game import parse_action
from rollyard.resources_servers.grl_sokoban.game_episode import GameEpisode
from rollyard.resources_servers.grl_sokoban.observation import View
from rollyard.resources_servers.grl_sokoban.settings import SokobanSettings
from rollyard.resources_servers.grl_sokoban.solver import is_deadlocked
from rollyard.resources_servers.grl_sokoban.task import puzzle_of, read_task

__all__ = ["GrlSokoban", "SokobanSettings", "read_move", "server"]

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
        reward = 0.0
        for _ in range(moves):
            if self.episode.over:
                break
            reward += self.episode.undo()
        return self._answer(reward)

    def _moved(self, moves: list[int]) -> float:
        reward = 0.0
        for move in moves:
            if self.episode.over:
                break
            reward += self.episode.move(move)
        return reward

    def _answer(self, reward: float) -> Json | list[Json]:
        game = self.episode.game
        state: Json = {
            "reward": tidy(reward),
            "total_reward": tidy(self.episode.total_reward),
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
