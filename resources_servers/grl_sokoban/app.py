"""Sokoban as an environment: the tool `step`, the optional tool `undo`, and a verdict with the optimal solution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
from rollyard.services.types import Json

__all__ = ["GrlSokoban", "SokobanSettings", "read_move", "server"]

_ACTION_TAG = re.compile(r"<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)
_BARE_ACTION = re.compile(r"\b(up|down|left|right|[1-4])\b", re.IGNORECASE)
_LEGEND = "# wall, _ floor, O target, X box, √ box on target, P player, S player on target\n"


class GrlSokoban(Environment[SokobanSettings]):
    """Push every box onto a target."""

    def __init__(self, task: Mapping[str, Any], settings: SokobanSettings) -> None:
        """Create the row's room. Raises BadTask if the room is impossible or too large."""
        super().__init__(task, settings)
        row = read_task(task)
        puzzle = puzzle_of(row, settings)
        self.max_steps = row.max_steps or settings.max_steps
        self.room, self.optimum = puzzle.room, puzzle.optimum
        self.play = GameEpisode(puzzle.room, self.max_steps, settings)
        self.view = View(settings.observations, settings.tile_px)

    @classmethod
    def offers(cls, name: str, settings: SokobanSettings) -> bool:
        """Offer `undo` only if the settings enable it."""
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
        if self.play.over:
            return self._answer(0.0)
        if not 1 <= moves <= self.play.undoable:
            raise InvalidToolCall(f"undo of {moves} moves: {self.play.undoable} can be taken back; nothing was done")
        reward = 0.0
        for _ in range(moves):
            if self.play.over:
                break
            reward += self.play.undo()
        return self._answer(reward)

    def _moved(self, moves: list[int]) -> float:
        reward = 0.0
        for move in moves:
            if self.play.over:
                break
            reward += self.play.move(move)
        return reward

    def _answer(self, reward: float) -> Json | list[Json]:
        game = self.play.game
        facts: Json = {
            "reward": reward,
            "total_reward": self.play.total_reward,
            "done": self.play.over,
            "steps": game.steps,
        }
        if self.settings.deadlock:
            facts["deadlocked"] = self.play.lost
        return self.view.answer(game.board(), facts)

    async def reset(self) -> tuple[str, Json]:
        """Return the board and the answer format. Raises BadTask for settings that this form does not support."""
        if "image" in self.settings.observations:
            raise BadTask("the turn-based form shows no images; set observations to text, coordinates or both")
        if self.settings.charge_unplayed:
            raise BadTask("the turn-based form has no final verdict; set charge_unplayed to false")
        how = "Answer each turn with one move: <action>Up</action>, <action>Down</action>, Left or Right."
        legend = _LEGEND if "text" in self.settings.observations else ""
        return f"{self._shown()}\n\n{legend}{how}", self._info()

    async def turn(self, text: str) -> Turn:
        """Execute one move from the model's message. A message without a move costs nothing and gets a hint."""
        move = read_move(text)
        if move is None:
            words = "No move found in your message. Answer with <action>Up</action>, Down, Left or Right."
            return Turn(f"{words}\n\n{self._shown()}", 0.0, False, False, self._info())
        reward = self._moved([move])
        terminated = self.play.game.success or self.play.ended_lost
        return Turn(self._shown(), reward, terminated, self.play.over and not terminated, self._info())

    async def verify(self, response: Verification) -> Verdict:
        """Return the accumulated reward together with the moves used and the optimum."""
        game, optimum = self.play.game, self.optimum
        fields = {
            **self._info(),
            "moves": game.steps,
            "optimal_moves": optimum.moves if optimum else None,
            "optimal_pushes": optimum.pushes if optimum else None,
            "deadlocked": False if game.success else is_deadlocked(game.position(), self.settings.solver_states),
            "room_seed": self.room.seed,
        }
        if self.play.shaped is not None:
            fields["shaping_reward"] = self.play.shaped
        return Verdict(reward=self.play.reward(), **fields)

    def _shown(self) -> str:
        return self.view.words(self.play.game.board())

    def _info(self) -> Json:
        game = self.play.game
        info = {"success": game.success, "boxes_on_target": game.boxes_on_target, "done": self.play.over}
        return {**info, "deadlocked": self.play.lost} if self.settings.deadlock else info


def read_move(text: str) -> int | None:
    """Parse the move in a message: from the first `<action>` tag, otherwise from the first bare word or digit."""
    tag = _ACTION_TAG.search(text)
    found = tag.group(1) if tag else next((match.group(1) for match in _BARE_ACTION.finditer(text)), "")
    try:
        return parse_action(found)
    except ValueError:
        return None


server = serve(GrlSokoban)
