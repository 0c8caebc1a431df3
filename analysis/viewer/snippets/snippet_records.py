"""Defines the record of a search result's snippet. It contains untrusted text from rollouts."""

from __future__ import annotations

from rollyard.records.types import Record


class Snippet(Record):
    """The first part of a rollout that contains the searched text, with some text around it."""

    event: int | None
    """Index of the event in the conversation; None if the text is only in another part of the row."""
    turn: int
    """The event's turn; 0 in the prompt."""
    place: str
    """The event's speaker, or the key of the row."""
    name: str
    """The tool of a call or a result, else ''."""
    before: str
    match: str
    after: str
    others: int
    """Number of other events that contain the text."""
