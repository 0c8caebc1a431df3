"""Live: what is known of a run while it runs, asked of its head and its agents at one moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.head.activity import Collection, RunningEpisode, StageActivity
from rollyard.services.head.agent_episodes import AgentActivity, fetch_activity
from rollyard.services.http.client import raise_for_status
from rollyard.services.http.transport import Transport
from rollyard.services.io.durations import duration
from rollyard.services.types import FailureRow, HeadFile, Record, ServerInstance

HEAD_DEADLINE_S = 10.0
EPISODES = 200
FAILURES = 50
_INSTANCES = TypeAdapter(list[ServerInstance])
_COLLECTIONS = TypeAdapter(list[Collection])
T = TypeVar("T")


class RunSnapshot(Record):
    """A run at one moment: `GET /api/live` of the viewer, and `ng_status +episodes=true +json=true`."""

    run_id: str = ""
    """Empty: no run was found, and `note` says where was looked."""
    head: str = ""
    """URL of the run's head."""
    time: float
    """When it was asked, Unix seconds."""
    servers: list[ServerInstance] = Field(default_factory=list)
    total: int = 0
    """Episodes being played."""
    stages: list[StageActivity] = Field(default_factory=list)
    """Over all agents: how many wait for what, at which server."""
    episodes: list[RunningEpisode] = Field(default_factory=list)
    """The oldest first, 200 at most."""
    stuck: list[str] = Field(default_factory=list)
    """A sentence for each stage that holds stuck episodes, and for each agent that told nothing."""
    collections: list[Collection] = Field(default_factory=list)
    """That run or have run on this stack, the latest first."""
    failures: list[FailureRow] = Field(default_factory=list)
    """The last 50 failed attempts of all collections, the latest last."""
    note: str = ""


async def fetch_snapshot(transport: Transport, head: HeadFile) -> RunSnapshot:
    """The run of `head` as it is now. Raises Failure when the head does not answer."""
    headers = {"authorization": f"Bearer {head.token}"} if head.token else {}

    async def read(path: str, kind: TypeAdapter[T]) -> T:
        answer = await transport.send("GET", head.url + path, b"", headers, HEAD_DEADLINE_S)
        try:
            return kind.validate_json(raise_for_status(answer, "head").body)
        except ValidationError as error:
            told = f"{head.url}{path} is not of this version of the stack: {error.errors()[0]['msg']}"
            raise Failure(FailureKind.MALFORMED_ANSWER, told, server="head") from error

    servers, collections = await asyncio.gather(
        read("/server_instances", _INSTANCES), read("/collections", _COLLECTIONS)
    )
    asked = await fetch_activity(transport, servers, headers, EPISODES)
    failures = sorted((row for one in collections for row in one.failures), key=lambda row: row.time)
    return RunSnapshot(
        run_id=head.run_id,
        head=head.url,
        time=time.time(),
        servers=servers,
        total=asked.total,
        stages=asked.stages(),
        episodes=asked.oldest(EPISODES),
        stuck=[*_stuck(asked.stages()), *_silent(asked)],
        collections=collections,
        failures=failures[-FAILURES:],
    )


def _stuck(stages: Sequence[StageActivity]) -> list[str]:
    return [_sentence(stage) for stage in stages if stage.stuck]


def _sentence(stage: StageActivity) -> str:
    usual = "and none has ended yet" if stage.median_s is None else f"where {duration(stage.median_s)} is usual"
    slowest = stage.slowest
    who = slowest.episode if slowest.task is None else f"task {slowest.task}, repeat {slowest.repeat}"
    return (
        f"{stage.stuck} of {stage.episodes} rollouts are stuck waiting for {stage.server} ({stage.stage}), {usual}; "
        f"the longest: {who} (turn {slowest.turn}) for {duration(slowest.stage_s)}"
    )


def _silent(asked: AgentActivity) -> list[str]:
    return [f"{name} does not say what it is playing: {why}" for name, why in sorted(asked.silent.items())]
