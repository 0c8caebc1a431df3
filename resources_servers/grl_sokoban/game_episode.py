"""Adds the optional features in the server's settings to a game: undo, deadlock detection and reward shaping."""

from __future__ import annotations

from functools import lru_cache

from rollyard.resources_servers.grl_sokoban.game import BOX, STEP_COST, Game, Room
from rollyard.resources_servers.grl_sokoban.settings import ShapingSettings, SokobanSettings
from rollyard.resources_servers.grl_sokoban.solver import UnsolvableRoom, fewest_moves, is_deadlocked


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
        """Undo the last move that moved the player and return the reward. Requires `undoable` > 0."""
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
        if self._settings.deadlock and _boxes(before) != _boxes(self._here):
            self.lost = self._is_lost()
        self.over = self.game.done or self.ended_lost
        return self._shaping.arrive(self._here) if self._shaping else 0.0

    def _is_lost(self) -> bool | None:
        return is_lost(self._here, self._settings.solver_states)


@lru_cache(maxsize=16384)
def is_lost(room: Room, most_states: int) -> bool | None:
    """Call `is_deadlocked` with a cache, because undo and other rollouts of the task reach the same positions again."""
    return is_deadlocked(room, most_states)


def _boxes(room: Room) -> bytes:
    return bytes(code == BOX for code in room.state)


class Shaping:
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
