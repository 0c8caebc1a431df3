"""Follows episodes by asking their agents for what is new. An episode that nobody watches is not asked for."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.viewer.api.api_records import Event
from rollyard.analysis.viewer.api.conversation_events import events_of
from rollyard.analysis.viewer.api.rollout_view import Replays
from rollyard.analysis.viewer.api.untrusted_values import sanitize
from rollyard.analysis.viewer.live.tail_records import TailState, TailView
from rollyard.records.errors import Failure, RunError
from rollyard.records.rollouts.partial_records import EpisodeTail
from rollyard.records.rollouts.replay import Replay
from rollyard.records.run_types import HeadFile
from rollyard.records.types import Json
from rollyard.services.head.run_snapshot import fetch_instances
from rollyard.services.http.transport import HttpResponse, Transport

CACHE_S = 0.4
"""An agent is asked at most this often about an episode, however many pages show it."""
DEADLINE_S = 2.0
MAX_FOLLOWED = 16
_PARTS = 4
"""Maximum number of parts of a long episode that are fetched at once."""
_FOREIGN = (
    "{agent} is an agent of another framework, which does not report its episodes: they can be read when they are "
    "finished"
)


@dataclass
class _Followed:
    """What is known of one episode."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    url: str | None = None
    """The instance that plays it."""
    row: Json = field(default_factory=dict)
    items: list[Json] = field(default_factory=list)
    last: EpisodeTail | None = None
    state: TailState = "unknown"
    note: str = ""
    asked: float = 0.0
    until: float = 0.0
    starts: int = 0
    """How many versions of the beginning have been seen: the environment may add to it."""
    drawn: tuple[int, list[Event], Replay | None] = (-1, [], None)
    """The revision that was drawn last, with its events and boards."""

    @property
    def revision(self) -> int:
        return 4 * len(self.items) + min(self.starts, 3)


class EpisodeTails:
    """The episodes that pages have asked for most recently."""

    def __init__(self, transport: Transport, find: Callable[[], Awaitable[HeadFile]], replays: Replays) -> None:
        self._transport = transport
        self._find = find
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
                followed.until = time.monotonic() + CACHE_S
            if followed.drawn[0] != followed.revision and followed.revision != have:
                followed.drawn = await run_in_threadpool(lambda: self._draw(followed))
            return _view(followed, agent, episode, have)

    async def _ask(self, followed: _Followed, agent: str, episode: str) -> None:
        try:
            head = await self._find()
            headers = {"authorization": f"Bearer {head.token}"} if head.token else {}
            if followed.url is None:
                followed.url, followed.note = await self._instance(head, headers, agent, episode)
            if followed.url is None:
                followed.state = "lost" if followed.last else "unknown"
                return
            for _ in range(_PARTS):
                response = await self._get(followed.url, headers, episode, len(followed.items))
                if not _add(followed, response):
                    return
        except (RunError, Failure) as error:
            followed.state, followed.url = ("lost" if followed.last else "unknown"), None
            followed.note = str(error) if followed.last is None else f"{agent} does not respond: {error}"

    async def _instance(
        self, head: HeadFile, headers: dict[str, str], agent: str, episode: str
    ) -> tuple[str | None, str]:
        """Return the URL of the agent's instance that plays the episode, or why there is none."""
        instances = [one for one in await fetch_instances(self._transport, head) if one.server_name == agent]
        if not instances:
            return None, f"the run has no agent {agent[:100]!r}"
        if any(one.origin for one in instances):
            return None, _FOREIGN.format(agent=agent)
        note = "its agent does not play it: it has ended, or the agent restarted"
        for url in [one.url for one in instances if one.url is not None]:
            try:
                if (await self._get(url, headers, episode, 0)).status == 200:
                    return url, ""
            except Failure as failure:
                note = f"{agent} does not respond: {failure.problem.detail}"
        return None, note

    async def _get(self, url: str, headers: dict[str, str], episode: str, since: int) -> HttpResponse:
        path = f"{url}/episodes/{quote(episode, safe='')}?since={since}"
        return await self._transport.send("GET", path, b"", headers, DEADLINE_S)

    def _draw(self, followed: _Followed) -> tuple[int, list[Event], Replay | None]:
        revision = followed.revision
        row = sanitize({**followed.row, "response": {"output": list(followed.items)}})
        return revision, events_of(row), self._replays(row)


def _add(followed: _Followed, response: HttpResponse) -> bool:
    """Add what an agent returned. Return whether it has more."""
    if response.status == 404:
        followed.state, followed.note = ("ended" if followed.last else "unknown"), "the episode has ended"
        return False
    try:
        tail = EpisodeTail.model_validate_json(response.body)
    except ValidationError:
        followed.state = "lost" if followed.last else "unknown"
        followed.note = f"the agent's response has the status {response.status} and is not in Rollyard's format"
        return False
    if tail.row is not None and tail.row != followed.row:
        followed.row = tail.row
        followed.starts += 1
    followed.items += tail.items
    followed.last, followed.state, followed.note, followed.asked = tail, "playing", "", time.time()
    return len(followed.items) < tail.total


def _view(followed: _Followed, agent: str, episode: str, have: int) -> TailView:
    revision, events, replay = followed.drawn
    known = have == followed.revision
    view = TailView(
        agent=agent,
        episode=episode,
        state=followed.state,
        note=followed.note,
        asked=followed.asked,
        revision=followed.revision if known else revision,
        events=None if known else events,
        replay=None if known else replay,
    )
    if (last := followed.last) is None:
        return view
    kept = {name: getattr(last, name) for name in ("task", "repeat", "stage", "server", "turn", "stage_s", "age_s")}
    return view.model_copy(update=kept)
