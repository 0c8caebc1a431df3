"""Play: one episode by the settings, a game and what a server adds to it: undo, the deadlock flag, shaping."""

from __future__ import annotations

from functools import lru_cache

from rollyard.resources_servers.grl_sokoban.game import BOX, STEP_COST, Game, Room
from rollyard.resources_servers.grl_sokoban.reward_shaping import Shaping
from rollyard.resources_servers.grl_sokoban.settings import SokobanSettings
from rollyard.resources_servers.grl_sokoban.solver import is_deadlocked


class GameEpisode:
    """Without settings it is the game and nothing else."""

    def __init__(self, start: Room, max_steps: int, settings: SokobanSettings) -> None:
        self.game = Game(start, max_steps)
        self._settings = settings
        self._watched = settings.undo or settings.deadlock is not None or settings.shaping is not None
        self._before: list[Room] = []
        self._here = start
        self._covered_at_start = self.game.boxes_on_target
        self._shaping = Shaping(settings.shaping, settings.solver_states, start) if settings.shaping else None
        self.lost: bool | None = self._is_lost() if settings.deadlock else None
        """Whether no play solves the position any more; None where that is not known, or not asked for."""
        self.over = self.game.done or self.ended_lost
        """No move counts any more: solved, out of steps, or lost where that ends the episode."""

    @property
    def ended_lost(self) -> bool:
        """The room is lost, and that ends the episode here."""
        return self.lost is True and self._settings.deadlock == "end"

    @property
    def total_reward(self) -> float:
        """What the steps so far have earned, shaping included."""
        return self.game.total_reward if self._shaping is None else self.game.total_reward + self._shaping.total

    @property
    def shaped(self) -> float | None:
        """The part of it that is shaping; None without."""
        return None if self._shaping is None else self._shaping.total

    @property
    def undoable(self) -> int:
        """Moves that can be taken back: those that moved the player and were not taken back yet."""
        return len(self._before)

    def move(self, action: int) -> float:
        """Play a move, 1 to 4; returns what it earned."""
        step = self.game.step(action)
        if not self._watched:
            self.over = step.done
            return step.reward
        before = self._here
        if step.effective:
            self._before.append(before)
            self._here = self.game.position()
        return step.reward + self._arrived(before)

    def undo(self) -> float:
        """Take the last move back that moved the player, one of `undoable`; returns what that earned."""
        before, self._here = self._here, self._before.pop()
        return self.game.back_to(self._here) + self._arrived(before)

    def reward(self) -> float:
        """What the episode is paid when it ends here."""
        if not self._settings.charge_unplayed or self.game.success:
            return self.total_reward
        if self.game.steps:
            return self.total_reward - STEP_COST * (self.game.max_steps - self.game.steps)
        # What the worst play can lose, and a step more: below it by more than floats round.
        bound = self._settings.shaping.bound if self._settings.shaping else 0.0
        return -STEP_COST * (self.game.max_steps + 1) - self._covered_at_start - bound

    def _arrived(self, before: Room) -> float:
        # Only a push can lose a room; a walk leaves the answer as it is.
        if self._settings.deadlock and _boxes(before) != _boxes(self._here):
            self.lost = self._is_lost()
        self.over = self.game.done or self.ended_lost
        return self._shaping.arrive(self._here) if self._shaping else 0.0

    def _is_lost(self) -> bool | None:
        return is_lost(self._here, self._settings.solver_states)


@lru_cache(maxsize=16384)
def is_lost(room: Room, most_states: int) -> bool | None:
    """`is_deadlocked`, kept: the repeats of a task come to the same positions, and so does an undo."""
    return is_deadlocked(room, most_states)


def _boxes(room: Room) -> bytes:
    return bytes(code == BOX for code in room.state)
