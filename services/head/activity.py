"""What is told of a run while it runs: the episodes that are being played, and how its collections go. Frozen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollyard.services.types import CollectionStatus, FailureRow, Record

Stage = Literal["seed", "model", "tool", "verify", "close"]
"""What an episode waits for: its session, the model, the world's answer to a tool call, the verdict, the end."""
STAGES: tuple[Stage, ...] = ("seed", "model", "tool", "verify", "close")


class RunningEpisode(Record):
    """An episode that an agent is playing, from its `GET /episodes`."""

    agent: str
    """Server name."""
    episode: str
    """The id that travels with its model calls."""
    task: int | None
    """`_ng_task_index` of its row, where it has one."""
    repeat: int | None
    stage: Stage
    server: str
    """Whom it waits for."""
    turn: int
    """Model calls begun."""
    age_s: float
    stage_s: float
    """Since this stage began."""
    stuck: bool = False
    """See `StageActivity.stuck`."""


class StageActivity(Record):
    """The episodes of one agent that wait for the same thing at the same server."""

    stage: Stage
    server: str
    episodes: int
    median_s: float | None
    """What this stage took lately: the median of the last 256 that ended. None: none has ended yet."""
    stuck: int
    """Episodes in it for over 30 s and over ten times that median; where there is none, for over five minutes."""
    slowest: RunningEpisode
    """The one that is in it for the longest time."""


class RunningEpisodes(Record):
    """What an agent is playing: the answer of its `GET /episodes`."""

    agent: str
    total: int
    stages: list[StageActivity]
    """The stages that have episodes now, in the order of an episode."""
    episodes: list[RunningEpisode]
    """The oldest first, `limit` of them at most."""


class Collection(Record):
    """A collection as it tells the head about itself once a second, and when it ends."""

    output: str
    """Absolute path of its rollout file, on the machine where it runs."""
    status: CollectionStatus
    failures: list[FailureRow]
    """Its last 50 failed attempts, the latest last."""
    code: dict[str, str] = Field(default_factory=dict)
    """Server name -> digest of the code by which its rows are marked now, of the servers that they reach."""
