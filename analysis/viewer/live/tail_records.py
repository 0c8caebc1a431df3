"""The response about an episode that is being played. It contains untrusted text from the model."""

from __future__ import annotations

from typing import Literal

from rollyard.analysis.viewer.api.api_records import Event
from rollyard.records.rollouts.replay import Replay
from rollyard.records.types import Record

TailState = Literal["playing", "ended", "lost", "unknown"]
"""`ended`: its agent no longer plays it. `lost`: its agent does not respond, so that the last reported state is shown.
`unknown`: no agent has reported it to this viewer."""


class TailView(Record):
    """GET /api/live/episodes/{agent}/{episode}?have=: an episode as far as it has been played."""

    agent: str
    episode: str
    state: TailState
    note: str = ""
    """Why nothing more is known; empty while the episode is played."""
    task: int | None = None
    repeat: int | None = None
    stage: str = ""
    server: str = ""
    """The server that the episode is waiting for."""
    turn: int = 0
    stage_s: float = 0.0
    age_s: float = 0.0
    asked: float = 0.0
    """Unix time of the last answer of the agent."""
    revision: int = 0
    """Changes with the conversation, and depends on nothing else: the viewer may have been restarted."""
    events: list[Event] | None = None
    """None if the caller already has this revision."""
    replay: Replay | None = None
