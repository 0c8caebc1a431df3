"""Records of a run's activity: its running episodes and the status of its collections. All records are frozen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollyard.records.types import CollectionStatus, FailureRow, Record

Stage = Literal["seed", "model", "tool", "verify", "close"]
"""What an episode waits for: the start of its session, the model, a tool result, the verdict, or the session's end."""
STAGES: tuple[Stage, ...] = ("seed", "model", "tool", "verify", "close")


class RunningEpisode(Record):
    agent: str
    """The agent's server name."""
    episode: str
    """The episode's id, which is sent with its model calls."""
    task: int | None
    """`_ng_task_index` of the episode's row; None if absent."""
    repeat: int | None
    stage: Stage
    server: str
    """The server that the episode is waiting for."""
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
    """Median duration of the last 256 finished stages of this kind; None if none has finished yet."""
    stuck: int
    """Number of episodes that have been in this stage for more than 30 s and more than ten times the median. If there
    is no median, the limit is five minutes."""
    slowest: RunningEpisode
    """The episode that has been in this stage for the longest time."""


class RunningEpisodes(Record):
    """The running episodes of an agent: the response of its `GET /episodes`."""

    agent: str
    total: int
    stages: list[StageActivity]
    """The stages that have episodes, in the order in which an episode goes through them."""
    episodes: list[RunningEpisode]
    """The oldest running episodes, at most `limit`, oldest first."""


class Collection(Record):
    """A collection's report to the head, sent once a second and when the collection ends."""

    output: str
    """Absolute path of the rollout file, on the host on which the collection runs."""
    status: CollectionStatus
    failures: list[FailureRow]
    """The collection's last 50 failed attempts, most recent last."""
    code: dict[str, str] = Field(default_factory=dict)
    """Server name -> the code digest that is recorded in new rows, for each server that the rows use."""
