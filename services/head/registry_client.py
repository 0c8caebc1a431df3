"""RegistryClient: registers servers with the head, sends their heartbeats, and fetches the directory.

`RunSnapshot` is what the head tells commands about a run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from rollyard.records.activity import STAGES, Collection, RunningEpisode, RunningEpisodes, Stage, StageActivity
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import (
    Directory,
    HeadFile,
    Heartbeat,
    Keys,
    Registration,
    RunOrigin,
    ServerCode,
    ServerInstance,
    StackKind,
)
from rollyard.records.terminal import duration
from rollyard.records.types import FailureRow, Record
from rollyard.services.http.client import RUN_HEADER, SECRET_HEADER, ServerClient
from rollyard.services.http.request import raise_for_status, with_server
from rollyard.services.http.transport import HttpTransport, Transport

REPORT_DEADLINE_S = 2.0
"""Timeout for a collection's report. It is short because a report that fails is replaced by the next one."""

_CODE, _DIRECTORY = TypeAdapter(dict[str, ServerCode]), TypeAdapter(Directory)
T = TypeVar("T")


class Registry(Protocol):
    """What a collection needs from a head. Every method raises Failure if the head does not respond."""

    async def directory(self) -> Directory: ...

    async def code(self) -> dict[str, ServerCode]: ...

    async def report_collection(self, collection: Collection) -> None:
        """Show the status of the collection to those who read it from the head."""
        ...


class RegistryClient:
    def __init__(self, transport: Transport, head_url: str, keys: Keys) -> None:
        self._transport = transport
        self._url = head_url
        self._headers = {RUN_HEADER: keys.run_id, "content-type": "application/json"}
        if keys.token:
            self._headers["authorization"] = f"Bearer {keys.token}"
        self._registration_headers = {**self._headers, SECRET_HEADER: keys.secret}

    async def register(self, registration: Registration) -> None:
        """Register an instance, with its URL and readiness. Raises Failure if the head rejects it or is unreachable."""
        await self._post("/register", registration)

    async def send_heartbeat(self, heartbeat: Heartbeat) -> Directory:
        """Send a heartbeat and return the current directory. Raises Failure if the request fails."""
        return _read(_DIRECTORY, await self._post("/heartbeat", heartbeat))

    async def report_collection(self, collection: Collection) -> None:
        """Report a collection's status to the head. Raises Failure if the request fails."""
        body = collection.model_dump_json(by_alias=True).encode()
        await self._send("POST", "/collection", body, self._headers, REPORT_DEADLINE_S)

    async def directory(self) -> Directory:
        return _read(_DIRECTORY, await self._send("GET", "/directory", b"", self._headers))

    async def code(self) -> dict[str, ServerCode]:
        """Fetch the digests of the code that each server has loaded, if it reports them. Raises Failure."""
        return _read(_CODE, await self._send("GET", "/server_code", b"", self._headers))

    async def _post(self, path: str, record: Record) -> bytes:
        return await self._send("POST", path, record.model_dump_json().encode(), self._registration_headers)

    async def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], deadline_s: float = 10.0
    ) -> bytes:
        try:
            return raise_for_status(
                await self._transport.send(method, self._url + path, body, headers, deadline_s), "head"
            ).body
        except Failure as failure:
            raise with_server(failure, "head") from failure


def _read(kind: TypeAdapter[T], body: bytes) -> T:
    try:
        return kind.validate_json(body)
    except ValidationError as error:
        detail = f"the head's response has an unexpected format: {body[:200].decode('utf-8', 'replace')!r}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server="head") from error


async def run_id_of(transport: HttpTransport, head: HeadFile) -> str:
    """Return the id of the run whose head is at `head.url`. Raises Failure, such as wrong_run."""
    status, body = await _get(transport, head, "/health")
    try:
        health = orjson.loads(body)
        if health["server"] != "head":
            raise Failure(FailureKind.WRONG_RUN, f"this is the server {health['server']!r}, not the head")
        return str(health["run_id"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        detail = _refusal(status, body) or f"not a Rollyard head (status {status})"
        raise Failure(FailureKind.WRONG_RUN, detail) from error


async def origin_of(transport: HttpTransport, head: HeadFile) -> RunOrigin:
    """Return where the run of this head was started. Raises Failure."""
    status, body = await _get(transport, head, "/origin")
    try:
        return RunOrigin.model_validate_json(body)
    except ValidationError as error:
        detail = f"it does not report where it was started (status {status}); it may be a different version of Rollyard"
        raise Failure(FailureKind.WRONG_RUN, detail) from error


def _refusal(status: int, body: bytes) -> str:
    if status == 401:
        return "it requires the run's token: export it as ROLLYARD_TOKEN"
    try:
        return str(orjson.loads(body)["detail"]) if status in (400, 403) else ""
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def token_header(head: HeadFile) -> dict[str, str]:
    return {"authorization": f"Bearer {head.token}"} if head.token else {}


async def _get(transport: HttpTransport, head: HeadFile, path: str) -> tuple[int, bytes]:
    response = await transport.send("GET", head.url + path, b"", token_header(head), 5.0)
    return response.status, response.body


@dataclass(frozen=True)
class StackClients:
    client: ServerClient
    registry: Registry


DEADLINE_S = 2.0
"""An agent that takes longer to respond is listed as unresponsive."""
HEAD_DEADLINE_S = 10.0
MAX_EPISODES = 200
MAX_FAILURES = 50
_INSTANCES = TypeAdapter(list[ServerInstance])
_COLLECTIONS = TypeAdapter(list[Collection])


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


async def fetch_snapshot(transport: Transport, head: HeadFile) -> RunSnapshot:
    """Fetch the current state of the run. Raises Failure if the head does not respond."""
    servers, collections = await asyncio.gather(
        fetch_instances(transport, head), _read_run(transport, head, "/collections", _COLLECTIONS)
    )
    activity = await fetch_activity(transport, servers, token_header(head), MAX_EPISODES)
    silent = [f"{name} does not report its episodes: {why}" for name, why in sorted(activity.unresponsive.items())]
    failures = sorted((row for one in collections for row in one.failures), key=lambda row: row.time)
    return RunSnapshot(
        run_id=head.run_id,
        head=head.url,
        time=time.time(),
        servers=servers,
        total=activity.total,
        stages=activity.stages(),
        episodes=activity.oldest(MAX_EPISODES),
        stuck=[*(_describe_stuck(stage) for stage in activity.stages() if stage.stuck), *silent],
        collections=[one for one in collections if not one.is_part],
        failures=failures[-MAX_FAILURES:],
    )


async def fetch_instances(transport: Transport, head: HeadFile) -> list[ServerInstance]:
    """Fetch every instance of the run, ready or not. Raises Failure if the head does not respond."""
    return await _read_run(transport, head, "/server_instances", _INSTANCES)


@dataclass
class AgentActivity:
    responses: list[RunningEpisodes] = field(default_factory=list)
    unresponsive: dict[str, str] = field(default_factory=dict)
    """Instance -> why it did not report its episodes."""

    @property
    def total(self) -> int:
        return sum(response.total for response in self.responses)

    def oldest(self, limit: int) -> list[RunningEpisode]:
        episodes = [episode for response in self.responses for episode in response.episodes]
        return sorted(episodes, key=lambda episode: -episode.age_s)[:limit]

    def stages(self) -> list[StageActivity]:
        """Return the stages of all agents combined, in the order in which an episode goes through them."""
        merged: dict[tuple[Stage, str], StageActivity] = {}
        for stage in (stage for response in self.responses for stage in response.stages):
            key = (stage.stage, stage.server)
            merged[key] = _merge(merged[key], stage) if key in merged else stage
        return sorted(merged.values(), key=lambda stage: (STAGES.index(stage.stage), stage.server))


async def fetch_activity(
    transport: Transport,
    instances: Sequence[ServerInstance],
    headers: Mapping[str, str],
    limit: int,
    deadline_s: float = DEADLINE_S,
) -> AgentActivity:
    """Fetch the oldest `limit` episodes from every instance of Rollyard's agents that has a URL."""
    activity = AgentActivity()

    async def fetch(instance: ServerInstance) -> None:
        url = f"{instance.url}/episodes?limit={limit}"
        try:
            response = raise_for_status(
                await transport.send("GET", url, b"", headers, deadline_s), instance.server_name
            )
            activity.responses.append(RunningEpisodes.model_validate_json(response.body))
        except Failure as failure:
            activity.unresponsive[instance.process_name] = failure.problem.detail
        except ValidationError:
            activity.unresponsive[instance.process_name] = "its response to GET /episodes is not in Rollyard's format"

    agents = [one for one in instances if one.server_type == "agents" and one.url is not None and not one.origin]
    await asyncio.gather(*(fetch(agent) for agent in agents))
    return activity


def _merge(one: StageActivity, other: StageActivity) -> StageActivity:
    medians = [stage.median_s for stage in (one, other) if stage.median_s is not None]
    return StageActivity(
        stage=one.stage,
        server=one.server,
        episodes=one.episodes + other.episodes,
        median_s=max(medians, default=None),
        stuck=one.stuck + other.stuck,
        slowest=max(one.slowest, other.slowest, key=lambda episode: episode.stage_s),
    )


async def _read_run(transport: Transport, head: HeadFile, path: str, kind: TypeAdapter[T]) -> T:
    response = await transport.send("GET", head.url + path, b"", token_header(head), HEAD_DEADLINE_S)
    try:
        return kind.validate_json(raise_for_status(response, "head").body)
    except ValidationError as error:
        detail = f"the response of {head.url}{path} has an unexpected format: {error.errors()[0]['msg']}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server="head") from error


def _describe_stuck(stage: StageActivity) -> str:
    usual = "and none has finished yet" if stage.median_s is None else f"which usually takes {duration(stage.median_s)}"
    slowest = stage.slowest
    episode = slowest.episode if slowest.task is None else f"task {slowest.task}, repeat {slowest.repeat}"
    return (
        f"{stage.stuck} of {stage.episodes} rollouts are stuck waiting for {stage.server} ({stage.stage}), {usual}; "
        f"{episode} (turn {slowest.turn}) has been waiting longest, for {duration(slowest.stage_s)}"
    )
