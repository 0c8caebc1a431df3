"""RecordedEpisode: what a model server records of the calls of a program, which is the agent of an episode.

An agent opens the recording, forwards the calls of its program to the paths below RECORDED, and closes the recording.
All requests name the episode in EPISODE_HEADER.
"""

from __future__ import annotations

from pydantic import Field

from rollyard.records.types import Json, Record

RECORDED = "/recorded"
"""Prefix of the dialects' own paths (`/v1/chat/completions`, ...)."""
OPEN = f"{RECORDED}/open"
CLOSE = f"{RECORDED}/close"
OUTPUT_TOKENS_HEADER = "x-rollyard-output-tokens"
"""Header of an answer with the number of tokens that the model has generated for it."""


class RecordingRequest(Record):
    params: Json = Field(default_factory=dict)
    """Create parameters that replace those of the program's requests."""
    keep_s: float = Field(gt=0)
    """After which time the recording may be dropped, because the agent must have died."""


class RecordedConversation(Record):
    """Model calls of which each continues the one before."""

    turns: int
    params: Json
    """The create parameters of the first call, without its input."""
    branches_off: tuple[int, int] | None = None
    """If its first call continues a turn that another call has continued, too: the index of that conversation, and of
    the turn in it. What came before is only recorded there."""


class RecordedEpisode(Record):
    conversations: list[RecordedConversation]
    """In the order in which they ended."""
    output: list[Json]
    """Their items in this order: those that each call added, and those of the model."""
    usages: list[Json]
    """Usage of each call."""
    last: Json
    """The response to the last call, without its output; empty if there was no call."""
