"""Replay: an episode as pictures of its board, for those who look on.

A world's folder may have a `replay.py` with `def replay(row: Json) -> Replay | None`: given a rollout row, its boards
move by move, or None where the row is not this world's. It reads what is recorded and never plays anything itself
but its own world's rules; a row is hostile input.
"""

from __future__ import annotations

from rollyard.services.types import Record


class Cell(Record):
    """How a symbol of the board is drawn."""

    symbol: str
    """One character."""
    name: str
    """For those who cannot see it."""
    looks: str
    """What the page draws: wall, floor, target, box, box_done, player, player_on_target; unknown ones as text."""


class Frame(Record):
    """The board after a move."""

    board: str
    """One line a row."""
    move: str = ""
    """What was done to get here, in the world's words; empty at the start."""
    reward: float | None = None
    """Given for this move."""
    total: float | None = None
    """Given up to here."""
    event: int | None = None
    """Which tool call of the episode it belongs to, counted from 0 over all calls; None where it belongs to none."""
    note: str = ""
    """A word about it: blocked, solved, deadlock."""


class Replay(Record):
    """Boards of an episode, and of the best one where it is known."""

    cells: list[Cell]
    frames: list[Frame]
    optimal: tuple[Frame, ...] = ()
    """An optimal play from the same start."""
    title: str = ""
    note: str = ""
    """Where what is recorded and the rules disagree, or why nothing better is known."""
