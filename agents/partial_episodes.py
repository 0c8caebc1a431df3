"""Returns what an agent knows of episodes that are not finished: with a failed `/run`, and to those who watch."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import orjson
from fastapi import Query
from fastapi.responses import Response

from rollyard.agents.episode import ActiveEpisodes, EpisodeState
from rollyard.records.activity import (
    EPISODE_ID_HEADER,
    MAX_RECORD_BYTES,
    PARTIAL_MEMBER,
    RECORD_HEADER,
    EpisodeTail,
    PartialConversation,
)
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import ResponseItem
from rollyard.records.types import Json
from rollyard.services.http.request import RawRequest
from rollyard.services.rollouts.partial_conversation import encoded_item, shortened

KEPT_BYTES = 32 << 20
KEPT_S = 60.0
"""Conversations of cancelled episodes are kept this long, up to KEPT_BYTES: their caller no longer waits for `/run`."""
TAIL_BYTES = 2 << 20
"""A watcher gets at most this much at once, but at least one item."""
_EPISODE_ID = re.compile(r"[0-9a-f]{32}")

log = logging.getLogger(__name__)


class PartialEpisodes:
    def __init__(self, agent: str, active: ActiveEpisodes) -> None:
        self._agent = agent
        self._active = active
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._kept_bytes = 0

    @contextmanager
    def recording(self, call: RawRequest, state: EpisodeState) -> Iterator[None]:
        """If the caller asked for it, add the partial conversation to what fails within the `with` block. The failure
        stays the same otherwise. If the caller disconnects, the conversation is kept for a while.
        """
        limit = _limit_of(call)
        try:
            yield
        except asyncio.CancelledError:
            if limit:
                self._keep(state.episode, partial_of(state, limit).model_dump_json().encode())
            raise
        except Failure as failure:
            if limit:
                _attach(failure, state, limit)
            raise
        except (Exception, SystemExit) as error:  # code of a plug-in may call sys.exit
            if not limit:
                raise
            log.error("%s%s failed", self._agent, call.path, exc_info=error)
            detail = f"{type(error).__name__}: {error} (traceback in the log of {self._agent})"
            raised = Failure(FailureKind.SERVER_ERROR, detail)
            _attach(raised, state, limit)
            raise raised from error

    async def partial(self, episode: str, bytes: Annotated[int, Query(ge=1, le=MAX_RECORD_BYTES)]) -> Response:
        """Return the conversation of an active episode, or of one whose caller disconnected within the last minute."""
        self._expire()
        # A cancelled episode stays active while its session is closed, but what it waited for is no longer known.
        if (kept := self._kept.pop(episode, None)) is not None:
            self._kept_bytes -= len(kept[1])
            return _json(kept[1])
        if (state := self._active.find(episode)) is None:
            raise _unknown(episode)
        return _json(partial_of(state, bytes).model_dump_json().encode())

    async def tail(self, episode: str, since: Annotated[int, Query(ge=0)] = 0) -> Response:
        """Return an active episode from the output item `since` on."""
        if (state := self._active.find(episode)) is None or state.conversation is None:
            raise _unknown(episode)
        now, output = time.perf_counter(), state.conversation.output
        row: Json | None = None
        if since == 0:
            row, _ = shortened(_fields(state), state.conversation.start, [], MAX_RECORD_BYTES)
        tail = EpisodeTail(
            agent=self._agent,
            episode=episode,
            task=state.task,
            repeat=state.repeat,
            **state.progress(now),
            timings=_rounded(state.spans),
            row=row,
            since=since,
            items=_first_items(output[since:]),
            total=len(output),
        )
        return _json(tail.model_dump_json().encode())

    def _keep(self, episode: str, encoded: bytes) -> None:
        self._kept[episode] = (time.monotonic(), encoded)
        self._kept_bytes += len(encoded)
        self._expire()

    def _expire(self) -> None:
        oldest = time.monotonic() - KEPT_S
        while self._kept:
            kept_at, encoded = next(iter(self._kept.values()))
            if kept_at > oldest and self._kept_bytes <= KEPT_BYTES:
                return
            self._kept.popitem(last=False)
            self._kept_bytes -= len(encoded)


def episode_id(call: RawRequest) -> str:
    given = call.header(EPISODE_ID_HEADER.encode()) or ""
    return given if _EPISODE_ID.fullmatch(given) else uuid.uuid4().hex


def partial_of(state: EpisodeState, limit: int) -> PartialConversation:
    now, conversation = time.perf_counter(), state.conversation
    start, output = (conversation.start, conversation.output) if conversation else ([], [])
    timings = _rounded(state.spans[:_SPANS] + state.spans[max(_SPANS, len(state.spans) - _SPANS) :])
    row, omitted = shortened(_fields(state), start, output, limit - _SPAN_BYTES * len(timings))
    return PartialConversation(source="agent", **state.progress(now), timings=timings, row=row, omitted=omitted)


_SPANS = 500
_SPAN_BYTES = 20
"""The first and the last 500 durations are recorded, each of which takes about 20 bytes."""


def _rounded(spans: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    return [(stage, round(seconds, 6)) for stage, seconds in spans]


def _fields(state: EpisodeState) -> Json:
    params = state.conversation.params if state.conversation else {}
    return {**state.row, "responses_create_params": params}


def _attach(failure: Failure, state: EpisodeState, limit: int) -> None:
    partial = partial_of(state, limit).model_dump(mode="json")
    failure.problem = failure.problem.model_copy(update={PARTIAL_MEMBER: partial})


def _limit_of(call: RawRequest) -> int:
    given = call.header(RECORD_HEADER.encode()) or ""
    return min(int(given), MAX_RECORD_BYTES) if given.isascii() and given.isdigit() and len(given) <= 9 else 0


def _first_items(output: Sequence[ResponseItem]) -> list[Json]:
    found: list[Json] = []
    used = 0
    for item in output:
        encoded = encoded_item(item)
        used += len(encoded)
        if used > TAIL_BYTES and found:
            break
        found.append(orjson.loads(encoded))
    return found


def _unknown(episode: str) -> Failure:
    detail = f"episode {episode[:64]!r} is not active: it has ended, or the agent restarted"
    return Failure(FailureKind.BAD_REQUEST, detail, status=404, code="episode_not_active")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
