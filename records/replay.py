"""Replay: the boards of an episode, for the viewer.

An environment's folder may contain a `replay.py` with `def replay(row: Json) -> Replay | None`. This function returns
the boards of a rollout row, move by move, or None if the row is from a different environment. It derives the boards
from the recorded actions and the environment's rules, without running an episode. Rows are untrusted input.
"""

from __future__ import annotations

from rollyard.records.types import Record


class Cell(Record):
    symbol: str
    name: str
    """Accessible name, for screen readers."""
    looks: str
    """What the viewer draws: wall, floor, target, box, box_done, player, player_on_target. Anything else is text."""


class Frame(Record):
    """The board after a move."""

    board: str
    move: str = ""
    """The move that led to this board, in the environment's notation; empty at the start."""
    reward: float | None = None
    total: float | None = None
    """Sum of the rewards up to and including this move."""
    event: int | None = None
    """Index of the move's tool call among all calls of the episode; None if it does not belong to one."""
    note: str = ""
    """A short remark, such as blocked, solved or deadlock."""


class Replay(Record):
    """Boards of an episode, and of an optimal solution if one is known."""

    cells: list[Cell]
    frames: list[Frame]
    optimal: tuple[Frame, ...] = ()
    """The boards of an optimal solution from the same start; empty if none is known."""
    title: str = ""
    note: str = ""
    """Notes on differences between the recorded and the replayed episode, or why no optimal solution is known."""
