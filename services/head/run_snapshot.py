"""RunSnapshot: the state of an active run at one moment, fetched from its head and its agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from rollyard.records.activity import Collection, RunningEpisode, StageActivity
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.io.durations import duration
from rollyard.records.run_types import HeadFile, ServerInstance, StackKind
from rollyard.records.types import FailureRow, Record
from rollyard.services.head.agent_episodes import AgentActivity, fetch_activity
from rollyard.services.http.response_failures import raise_for_status
from rollyard.services.http.transport import Transport

HEAD_DEADLINE_S = 10.0
MAX_EPISODES = 200
MAX_FAILURES = 50
_INSTANCES = TypeAdapter(list[ServerInstance])
_COLLECTIONS = TypeAdapter(list[Collection])
T = TypeVar("T")


class RunSnapshot(Record):
    """The state of a run at one moment, from the viewer's `GET /api/live` or `ng_status --episodes --json`."""

    run_id: str = ""
    """Empty if no run was found. `note` then lists the locations that were searched."""
    head: str = ""
    """URL of the run's head."""
    stack: StackKind = "rollyard"
    """With `nemo_gym`, only the servers are known, without their counters."""
    time: float
    """Time of the snapshot, in Unix seconds."""
    servers: list[ServerInstance] = Field(default_factory=list)
    total: int = 0
    """Number of running episodes."""
    stages: list[StageActivity] = Field(default_factory=list)
    """Episodes of all agents, grouped by stage and server."""
    episodes: list[RunningEpisode] = Field(default_factory=list)
    """The oldest running episodes, at most 200, oldest first."""
    stuck: list[str] = Field(default_factory=list)
    """A sentence for each stage with stuck episodes, and for each unresponsive agent."""
    collections: list[Collection] = Field(default_factory=list)
    """Current and past collections of this run, most recent first."""
    failures: list[FailureRow] = Field(default_factory=list)
    """The last 50 failed attempts of all collections, most recent last."""
    note: str = ""


async def fetch_instances(transport: Transport, head: HeadFile) -> list[ServerInstance]:
    """Fetch every instance of the run, ready or not. Raises Failure if the head does not respond."""
    return await _read(transport, head, "/server_instances", _INSTANCES)


async def fetch_snapshot(transport: Transport, head: HeadFile) -> RunSnapshot:
    """Fetch the current state of the run. Raises Failure if the head does not respond."""
    servers, collections = await asyncio.gather(
        fetch_instances(transport, head), _read(transport, head, "/collections", _COLLECTIONS)
    )
    activity = await fetch_activity(transport, servers, _headers(head), MAX_EPISODES)
    failures = sorted((row for one in collections for row in one.failures), key=lambda row: row.time)
    return RunSnapshot(
        run_id=head.run_id,
        head=head.url,
        time=time.time(),
        servers=servers,
        total=activity.total,
        stages=activity.stages(),
        episodes=activity.oldest(MAX_EPISODES),
        stuck=[*_stuck(activity.stages()), *_unresponsive(activity)],
        collections=collections,
        failures=failures[-MAX_FAILURES:],
    )


def _headers(head: HeadFile) -> dict[str, str]:
    return {"authorization": f"Bearer {head.token}"} if head.token else {}


async def _read(transport: Transport, head: HeadFile, path: str, kind: TypeAdapter[T]) -> T:
    response = await transport.send("GET", head.url + path, b"", _headers(head), HEAD_DEADLINE_S)
    try:
        return kind.validate_json(raise_for_status(response, "head").body)
    except ValidationError as error:
        detail = f"the response of {head.url}{path} has an unexpected format: {error.errors()[0]['msg']}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server="head") from error


def _stuck(stages: Sequence[StageActivity]) -> list[str]:
    return [_describe_stuck(stage) for stage in stages if stage.stuck]


def _describe_stuck(stage: StageActivity) -> str:
    usual = "and none has finished yet" if stage.median_s is None else f"which usually takes {duration(stage.median_s)}"
    slowest = stage.slowest
    episode = slowest.episode if slowest.task is None else f"task {slowest.task}, repeat {slowest.repeat}"
    return (
        f"{stage.stuck} of {stage.episodes} rollouts are stuck waiting for {stage.server} ({stage.stage}), {usual}; "
        f"{episode} (turn {slowest.turn}) has been waiting longest, for {duration(slowest.stage_s)}"
    )


def _unresponsive(activity: AgentActivity) -> list[str]:
    return [f"{name} does not report its episodes: {reason}" for name, reason in sorted(activity.unresponsive.items())]
