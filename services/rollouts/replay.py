"""Replay: the boards of an episode, for the viewer.

An environment's folder may have a `replay.py` with `def replay(row: Json) -> Replay | None`: given a rollout row, it
returns the boards move by move, or None if the row is not of this environment. It derives them from the recorded
actions and the environment's rules, without running an episode. Rows are untrusted input.
"""

from __future__ import annotations

from rollyard.services.types import Record


class Cell(Record):
    """How a symbol of the board is drawn."""

    symbol: str
    """One character."""
    name: str
    """Accessible name, for screen readers."""
    looks: str
    """What the viewer draws: wall, floor, target, box, box_done, player, player_on_target. Others are shown as text."""


class Frame(Record):
    """The board after a move."""

    board: str
    """One text line per row of the board."""
    move: str = ""
    """The move that led here, in the environment's notation; empty at the start."""
    reward: float | None = None
    """Reward of this move."""
    total: float | None = None
    """Sum of rewards up to this move."""
    event: int | None = None
    """Index of the move's tool call among all calls of the episode; None if it does not belong to one."""
    note: str = ""
    """A short remark: blocked, solved, deadlock."""


class Replay(Record):
    """Boards of an episode, and of an optimal solution if one is known."""

    cells: list[Cell]
    frames: list[Frame]
    optimal: tuple[Frame, ...] = ()
    """An optimal solution from the same start."""
    title: str = ""
    note: str = ""
    """Notes on differences between the recorded and the replayed episode, or why no optimal solution is known."""
