"""The run that is active now: its state, its last ten minutes, and its episodes while they are played.

Nothing is asked of the run unless a page is open, and then at most twice a second, however many pages are.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rollyard.analysis.charts.charts import Chart, Charts
from rollyard.analysis.charts.run_charts import Moment, pace, waiting
from rollyard.analysis.viewer.api_records import Event
from rollyard.analysis.viewer.conversation import events_of
from rollyard.analysis.viewer.responses import json_body
from rollyard.analysis.viewer.run_file import Replays
from rollyard.analysis.viewer.untrusted_values import sanitize
from rollyard.records.errors import Failure, RunError
from rollyard.records.replay import Replay
from rollyard.records.run_types import ServerInstance
from rollyard.records.types import Json, Record

RUN_CACHE_S = 0.5
EPISODE_CACHE_S = 0.4
"""An agent is asked at most this often about an episode, however many pages show it."""
MAX_MOMENTS = 600
"""Maximum number of moments: ten minutes at one request per second."""
MAX_FOLLOWED = 16
_SHOWN = {"task", "repeat", "stage", "server", "turn", "stage_s", "age_s"}
_PARTS = 4
"""Maximum number of parts of a long episode that are fetched at once."""
_FOREIGN = (
    "{agent} is an agent of another framework, which does not report its episodes: they can be read when they are "
    "finished"
)
TailState = Literal["playing", "ended", "lost", "unknown"]
"""`ended`: its agent no longer plays it. `lost`: its agent does not respond, so that the last reported state is shown.
`unknown`: no agent has reported it to this viewer."""


class RunState(Protocol):
    """What the history needs of the state of a run at one moment, which the page gets as JSON."""

    @property
    def run_id(self) -> str: ...
    @property
    def time(self) -> float: ...
    @property
    def total(self) -> int: ...
    @property
    def stages(self) -> Sequence[Any]: ...
    @property
    def collections(self) -> Sequence[Any]: ...
    def model_dump_json(self) -> str: ...


class LiveRun(Protocol):
    """The run that the live page shows. `cli/viewer.py` asks its head and its agents."""

    async def snapshot(self) -> RunState:
        """Return the state of the run. Without a run, it has no `run_id`, and its `note` says why."""
        ...

    async def instances(self) -> Sequence[ServerInstance]:
        """Return the run's servers. Raises RunError or Failure if there is no run, or if its head does not respond."""
        ...

    async def get(self, url: str) -> tuple[int, bytes]:
        """Send a GET request to one of these servers, and return the status and the body. Raises as `instances`."""
        ...


def live_router(run: LiveRun, replays: Replays) -> APIRouter:
    router = APIRouter(prefix="/api/live")
    cache, tails = _Cache(run), EpisodeTails(run, replays)

    @router.get("", summary="The current run: servers, episodes by stage, stuck episodes, collections and failures")
    async def state() -> Response:
        return json_body((await cache.read()).model_dump_json())

    @router.get("/charts", summary="Its last ten minutes, which are only recorded while a page is open")
    async def charts() -> Response:
        return json_body((await cache.charts()).model_dump_json())

    @router.get("/episodes/{agent}/{episode}", summary="An episode that is being played")
    async def tail(
        agent: Annotated[str, Path(max_length=200)],
        episode: Annotated[str, Path(max_length=200)],
        have: Annotated[int, Query(ge=-1)] = -1,
    ) -> Response:
        return json_body((await tails.view(agent, episode, have)).model_dump_json())

    return router


class _Cache:
    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._lock = asyncio.Lock()
        self._snapshot: RunState | None = None
        self._until = 0.0
        self._history = RunHistory()
        self._drawn: tuple[RunState, Charts] | None = None

    async def read(self) -> RunState:
        async with self._lock:
            return await self._current()

    async def charts(self) -> Charts:
        """Return the charts of the run's history, which are drawn once per snapshot."""
        async with self._lock:
            live = await self._current()
            if self._drawn is None or self._drawn[0] is not live:
                self._drawn = live, Charts(charts=await run_in_threadpool(self._history.charts))
            return self._drawn[1]

    async def _current(self) -> RunState:
        if self._snapshot is None or time.monotonic() > self._until:
            self._snapshot = await self._run.snapshot()
            self._until = time.monotonic() + RUN_CACHE_S
            self._history.add(self._snapshot)
        return self._snapshot


class RunHistory:
    """The history of one run. It is cleared when a different run starts."""

    def __init__(self) -> None:
        self._latest: RunState | None = None
        self._moments: deque[Moment] = deque(maxlen=MAX_MOMENTS)

    def add(self, live: RunState) -> None:
        """Add a snapshot. Snapshots without a run are ignored, because the head may become reachable again."""
        if not live.run_id:
            return
        if self._latest is not None and self._latest.run_id != live.run_id:
            self._moments.clear()
        self._latest = live
        running = [one.status for one in live.collections if one.status.state == "running"]
        rate = sum(status.rollouts_per_s for status in running)
        self._moments.append(Moment(time=live.time, rollouts_per_s=rate, in_progress=live.total))

    def charts(self) -> list[Chart]:
        """Return charts of throughput (if there are at least two moments) and of rollouts in progress by stage."""
        wait = waiting(self._latest.stages) if self._latest is not None else None
        return [*pace(tuple(self._moments)), *([] if wait is None else [wait])]


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


class _Tail(BaseModel):
    """An agent's answer about an episode: what is new of it. Fields that are not shown are ignored."""

    task: int | None
    repeat: int | None
    stage: str
    server: str
    stage_s: float
    age_s: float
    turn: int
    row: Json | None
    """The row's fields and `responses_create_params`; only if the episode is asked for from its start."""
    items: list[Json]
    total: int
    """Number of output items so far."""


@dataclass
class _Followed:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    url: str | None = None
    row: Json = field(default_factory=dict)
    items: list[Json] = field(default_factory=list)
    last: _Tail | None = None
    state: TailState = "unknown"
    note: str = ""
    asked: float = 0.0
    until: float = 0.0
    starts: int = 0
    """How many versions of the beginning have been seen: the environment may add to it."""
    drawn: tuple[int, list[Event] | None, Replay | None] = (-1, [], None)
    """The revision that was drawn last, with its events and boards."""

    @property
    def revision(self) -> int:
        return 4 * len(self.items) + min(self.starts, 3)

    def add(self, status: int, body: bytes) -> bool:
        """Add what an agent returned. Return whether it has more."""
        if status == 404:
            self.state, self.note = ("ended" if self.last else "unknown"), "the episode has ended"
            return False
        try:
            tail = _Tail.model_validate_json(body)
        except ValidationError:
            self.state = "lost" if self.last else "unknown"
            self.note = f"the agent's response has the status {status} and is not in Rollyard's format"
            return False
        if tail.row is not None and tail.row != self.row:
            self.row = tail.row
            self.starts += 1
        self.items += tail.items
        self.last, self.state, self.note, self.asked = tail, "playing", "", time.time()
        return len(self.items) < tail.total

    def view(self, agent: str, episode: str, have: int) -> TailView:
        revision, events, replay = self.drawn
        if have == self.revision:
            revision, events, replay = have, None, None
        last = {} if self.last is None else self.last.model_dump(include=_SHOWN)
        return TailView(
            agent=agent,
            episode=episode,
            state=self.state,
            note=self.note,
            asked=self.asked,
            revision=revision,
            events=events,
            replay=replay,
            **last,
        )


class EpisodeTails:
    """The episodes that pages have asked for most recently."""

    def __init__(self, run: LiveRun, replays: Replays) -> None:
        self._run = run
        self._replays = replays
        self._followed: OrderedDict[tuple[str, str], _Followed] = OrderedDict()

    async def view(self, agent: str, episode: str, have: int) -> TailView:
        """Return the episode, without its conversation if `have` is its revision."""
        followed = self._followed.setdefault((agent, episode), _Followed())
        self._followed.move_to_end((agent, episode))
        while len(self._followed) > MAX_FOLLOWED:
            self._followed.popitem(last=False)
        async with followed.lock:
            if followed.state != "ended" and time.monotonic() > followed.until:
                await self._ask(followed, agent, episode)
                followed.until = time.monotonic() + EPISODE_CACHE_S
            if followed.drawn[0] != followed.revision and followed.revision != have:
                followed.drawn = await run_in_threadpool(lambda: self._draw(followed))
            return followed.view(agent, episode, have)

    async def _ask(self, followed: _Followed, agent: str, episode: str) -> None:
        try:
            if followed.url is None:
                followed.url, followed.note = await self._instance(agent, episode)
            if followed.url is None:
                followed.state = "lost" if followed.last else "unknown"
                return
            for _ in range(_PARTS):
                if not followed.add(*await self._part(followed.url, episode, len(followed.items))):
                    return
        except (RunError, Failure) as error:
            followed.state, followed.url = ("lost" if followed.last else "unknown"), None
            followed.note = str(error) if followed.last is None else f"{agent} does not respond: {error}"

    async def _instance(self, agent: str, episode: str) -> tuple[str | None, str]:
        """Return the URL of the agent's instance that plays the episode, or why there is none."""
        instances = [one for one in await self._run.instances() if one.server_name == agent]
        if not instances:
            return None, f"the run has no agent {agent[:100]!r}"
        if any(one.origin for one in instances):
            return None, _FOREIGN.format(agent=agent)
        note = "its agent does not play it: it has ended, or the agent restarted"
        for url in [one.url for one in instances if one.url is not None]:
            try:
                if (await self._part(url, episode, 0))[0] == 200:
                    return url, ""
            except Failure as failure:
                note = f"{agent} does not respond: {failure.problem.detail}"
        return None, note

    async def _part(self, url: str, episode: str, since: int) -> tuple[int, bytes]:
        return await self._run.get(f"{url}/episodes/{quote(episode, safe='')}?since={since}")

    def _draw(self, followed: _Followed) -> tuple[int, list[Event] | None, Replay | None]:
        revision = followed.revision
        row = sanitize({**followed.row, "response": {"output": list(followed.items)}})
        return revision, events_of(row), self._replays(row)
