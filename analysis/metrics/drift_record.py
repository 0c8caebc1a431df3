"""Defines the record of how often the recorded tokens of a turn do not continue those of the previous turn."""

from __future__ import annotations

from rollyard.records.types import Record


class Drift(Record):
    """Prefix mismatches between the recorded tokens of consecutive turns, from `token_trail`."""

    rollouts: int
    """Number of rollouts with recorded tokens."""
    turns: int
    """Number of turns after the first whose tokens are recorded."""
    breaks: int
    """Number of turns whose prompt does not begin with exactly the tokens of the previous turn."""
    rate: float | None
    """Share of turns with a prefix mismatch: breaks / turns."""
    broken_rollouts: int
    most_segments: int
