"""Records of a run's activity: its running episodes and the status of its collections. All records are frozen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from rollyard.records.types import CollectionStatus, FailureRow, Json, Record

Stage = Literal["seed", "model", "tool", "verify", "close"]
"""What an episode waits for: the start of its session, the model, a tool result, the verdict, or the session's end."""
STAGES: tuple[Stage, ...] = ("seed", "model", "tool", "verify", "close")


class RunningEpisode(Record):
    agent: str
    episode: str
    task: int | None
    """`_ng_task_index` of the episode's row; None if absent."""
    repeat: int | None
    stage: Stage
    server: str
    turn: int
    age_s: float
    stage_s: float
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
    is_part: bool = False
    """Whether it is the share of one of several collectors. The collection of all reports their status, but only they
    report their failures."""
    code: dict[str, str] = Field(default_factory=dict)
    """Server name -> the code digest that is recorded in new rows, for each server that the rows use."""


LOAD_PATH = "/load"


class EngineLoad(Record):
    """What the engines of a model server report at the moment, as sums over the engines."""

    running: int = 0
    """Calls that are being generated."""
    waiting: int = 0
    kv_cache_usage: float = 0.0
    """Share of the KV cache that running calls use, of the fullest engine."""
    preemptions: int = 0
    """Number of calls since the start whose KV cache was taken for others."""


class ModelLoad(Record):
    """GET /load of a model server: its model calls since it started, and those in flight."""

    finished: int = 0
    failed: int = 0
    """How many of them had no response: the endpoint failed or rejected them."""
    seconds: float = 0.0
    """Sum of their durations."""
    in_flight: int = 0
    rejected: int = 0
    """Number of attempts that the endpoint rejected because of its load (429, 503), or that timed out."""
    engine: EngineLoad | None = None
    """None if no engine reports metrics that are known."""


def summed(loads: Iterable[ModelLoad]) -> ModelLoad:
    given = list(loads)
    return ModelLoad(
        finished=sum(load.finished for load in given),
        failed=sum(load.failed for load in given),
        seconds=sum(load.seconds for load in given),
        in_flight=sum(load.in_flight for load in given),
        rejected=sum(load.rejected for load in given),
        engine=summed_engines([load.engine for load in given if load.engine is not None]),
    )


def summed_engines(engines: Sequence[EngineLoad]) -> EngineLoad | None:
    if not engines:
        return None
    return EngineLoad(
        running=sum(engine.running for engine in engines),
        waiting=sum(engine.waiting for engine in engines),
        kv_cache_usage=max(engine.kv_cache_usage for engine in engines),
        preemptions=sum(engine.preemptions for engine in engines),
    )


RECORD_HEADER = "x-rollyard-partial-bytes"
"""Header of a `/run` request. The agent then returns the partial conversation of a failed episode, up to this size, as
the member `partial` of its problem document. Without the header, the response is the same as that of older agents."""
EPISODE_ID_HEADER = "x-rollyard-episode"
"""Header of a `/run` request with the episode's id, under which the caller can ask for a conversation that it lost."""
PARTIAL_MEMBER = "partial"
MAX_RECORD_BYTES = 16 << 20
"""Upper limit of the size that a caller may ask for."""


class Omitted(Record):
    """What a partial conversation lacks because of its size limit."""

    items: int = 0
    """Number of items that were removed from the middle of the conversation."""
    after: int = 0
    """Number of items before the gap: first those of the model's input, then those of the episode."""
    texts: int = 0
    """Number of texts whose middle was removed; they say so themselves."""
    tokens: int = 0
    """Number of model calls whose recorded tokens were removed."""
    fields: list[str] = Field(default_factory=list)


class PartialConversation(Record):
    """The key `partial` of a row of X_failures.jsonl: how far the attempt got."""

    source: Literal["agent", "model_server"]
    """Who remembered it. A model server only knows the last request of the episode, without the answer to it."""
    stage: str = ""
    """What the episode was waiting for when it failed: `seed`, `model`, `tool`, `verify`; empty if unknown."""
    server: str = ""
    stage_s: float | None = None
    age_s: float | None = None
    turn: int = 0
    timings: list[tuple[str, float]] = Field(default_factory=list)
    """The finished stages in order, each with its duration in seconds."""
    row: Json
    """The row as far as it was known: its own fields, `responses_create_params`, and `response.output`."""
    omitted: Omitted | None = None


class EpisodeTail(Record):
    """GET /episodes/{episode}?since=N of an agent: an active episode from the Nth output item on."""

    agent: str
    episode: str
    task: int | None
    repeat: int | None
    stage: str
    server: str
    stage_s: float
    age_s: float
    turn: int
    timings: list[tuple[str, float]]
    row: Json | None
    """The row's fields and `responses_create_params`; None if `since` is not 0, because the caller has them."""
    since: int
    items: list[Json]
    """Output items from `since` on, up to a few megabytes."""
    total: int
