"""Records of a run's activity: its running episodes and the status of its collections. All are frozen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollyard.services.types import CollectionStatus, FailureRow, Record

Stage = Literal["seed", "model", "tool", "verify", "close"]
"""What an episode waits for: the start of its session, the model, a tool result, the verdict, or the session's end."""
STAGES: tuple[Stage, ...] = ("seed", "model", "tool", "verify", "close")


class RunningEpisode(Record):
    """A running episode, from the agent's `GET /episodes`."""

    agent: str
    """Server name."""
    episode: str
    """The episode's id, which its model calls carry."""
    task: int | None
    """`_ng_task_index` of its row; None if absent."""
    repeat: int | None
    stage: Stage
    server: str
    """The server that it waits for."""
    turn: int
    """Number of model calls started."""
    age_s: float
    stage_s: float
    """Seconds since this stage started."""
    stuck: bool = False
    """True if the episode counts towards `StageActivity.stuck`."""


class StageActivity(Record):
    """The episodes of one agent in the same stage at the same server."""

    stage: Stage
    server: str
    episodes: int
    median_s: float | None
    """Median duration of the last 256 stages of this kind that ended. None if none has ended yet."""
    stuck: int
    """Episodes in this stage for over 30 s and over ten times the median; without a median, for over five minutes."""
    slowest: RunningEpisode
    """The episode that has been in this stage for the longest time."""


class RunningEpisodes(Record):
    """The running episodes of an agent: the response of its `GET /episodes`."""

    agent: str
    total: int
    stages: list[StageActivity]
    """The stages that have episodes, in the order in which an episode passes them."""
    episodes: list[RunningEpisode]
    """The oldest first, at most `limit`."""


class Collection(Record):
    """A collection's report to the head, sent once a second and when the collection ends."""

    output: str
    """Absolute path of its rollout file, on the host where it runs."""
    status: CollectionStatus
    failures: list[FailureRow]
    """The collection's last 50 failed attempts, the most recent last."""
    code: dict[str, str] = Field(default_factory=dict)
    """Server name -> digest of the code recorded in new rows, for the servers that the rows use."""
