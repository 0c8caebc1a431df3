"""Forwards vLLM's control endpoints to every engine, for trainers that transfer weights themselves.

    POST /pause?mode=keep, /start_weight_update, /update_weights ..., /finish_weight_update, /resume

This server enforces that order because vLLM 0.32 does not: between start and finish, its weights are invalid, and a
running request crashes it. Control calls and updates from a folder run one after another. Each call is checked and sent
to every engine, and its replies are recorded, so the recorded state is always that of the last replies.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qs, parse_qsl, urlencode

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json, Problem
from rollyard.responses_api_models.chat_engine.checkpoint import bad_request, check_announced, conflict, upstream_error
from rollyard.responses_api_models.chat_engine.engine_group import EngineGroup, EngineReply, JobQueue
from rollyard.responses_api_models.chat_engine.policy_versions import (
    ASLEEP,
    CHANGING,
    PAUSED,
    STOPPING,
    UPDATING,
    Gate,
    PolicyVersions,
    checked_version,
)
from rollyard.responses_api_models.chat_engine.weight_update import CpuLimits, JoiningEngines, WeightLoader
from rollyard.services.http.request import PROBLEM_TYPE, read_object

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Minimum delay before retrying to resume engines that did not resume when a lease expired."""
_BY_RPC = frozenset({"reload_weights", "start_weight_update", "update_weights", "finish_weight_update"})
"""Worker methods that have their own endpoint on this server, which tracks the version."""
_STOPS = {"/pause": (PAUSED, "/resume"), "/sleep": (ASLEEP, "/wake_up")}
"""Path -> the reason why model calls wait afterwards, and the path of the call that undoes it."""
_RESUMES = {"/resume": (PAUSED,), "/wake_up": (ASLEEP, PAUSED)}
"""Path -> the reasons for waiting that it removes; vLLM's wake_up also resumes."""
_NAMES = {"/finish_weight_update": "weight_version", "/update_weight_version": "new_version"}
"""Path -> the request field that contains the new version."""
_INTERRUPTED = (
    "the pause lease expired during this update, which was interrupted: start again with POST /pause and "
    "/start_weight_update"
)
_CHANGES_WEIGHTS = frozenset({"/update_weights", "/finish_weight_update", "/collective_rpc"})


@dataclass(eq=False)
class VllmControl:
    _engines: EngineGroup
    _loader: WeightLoader
    _versions: PolicyVersions
    _gate: Gate
    _jobs: JobQueue
    _joining_engines: JoiningEngines
    _cpu: CpuLimits
    _on_invalid: Callable[[str], None]
    _lease_s: float
    _folder: str | None = field(default="", init=False)
    _is_updating: bool = field(default=False, init=False)
    _interrupted: bool = field(default=False, init=False)
    """Whether the lease expired during an update."""

    def __post_init__(self) -> None:
        self.lease = PauseLease(lambda: self._jobs.run(self._expire()))

    async def post(self, path: str, query: str, body: bytes) -> list[EngineReply]:
        request = read_object(body) if body else {}
        if path == "/collective_rpc" and (method := request.get("method")) in _BY_RPC:
            own = "/weights/update" if method == "reload_weights" else f"/{method}"
            raise bad_request(f"method {method!r} has a separate endpoint: POST {own}")
        if self._gate.waits_for(UPDATING):
            raise conflict(f"{UPDATING}; wait for its response")
        lease_s = None
        if path in _STOPS:
            lease_s, query, rest = split_lease(query, request)
            body = orjson.dumps(rest) if rest != request else body

        async def step() -> list[EngineReply]:
            replies = await self.lease.during(lambda: self._pass_on(path, query, body, request))
            self._take_lease(path, lease_s, any(one.ok for one in replies))
            return replies

        return await self._jobs.run(step())

    async def update(self, step: Callable[[], Awaitable[Json]]) -> Json:
        """Run an update from a folder. If an engine does not resume, the remaining pause also gets a lease."""
        try:
            return await self._jobs.run(self.lease.during(step))
        finally:
            if self._gate.waits_for(PAUSED) and not self._gate.waits_for(ASLEEP) and self.lease.length_s is None:
                self.lease.start(self._lease_s)

    async def get(self, path: str, query: str) -> list[EngineReply]:
        return await self._engines.each("GET", f"{path}?{query}" if query else path)

    async def _pass_on(self, path: str, query: str, body: bytes, request: Json) -> list[EngineReply]:
        target = f"{path}?{query}" if query else path
        if path in ("/resume", "/wake_up", "/update_weight_version") and self._is_unfinished:
            raise conflict(
                "a weight update is not finished, and a request that runs now would crash vLLM: POST "
                "/finish_weight_update first, or restart the engines"
            )
        if path in _STOPS:
            return await self._stop(path, target, body, "2" in parse_qs(query).get("level", ()))
        if path in _RESUMES:
            return await self._continue_update(path, target, body)
        if path == "/start_weight_update":
            return await self._start_update(target, body)
        if path in _NAMES:
            return await self._name(path, target, request)
        if path == "/update_weights":
            if self._interrupted:
                raise conflict(_INTERRUPTED)
            check_announced(request, self._versions.model)
        bodies: dict[str, bytes] = {}
        if path == "/init_weight_transfer_engine":
            if self._gate.stopped:
                await self._joining_engines.join()
            bodies = await ranked_bodies(self._engines, request)
        replies = await self._engines.change_each(target, body, bodies)
        if path in _CHANGES_WEIGHTS:
            self._versions.folder = None
            self._hold((one.url for one in replies if not one.ok), None)
        return replies

    @property
    def _is_unfinished(self) -> bool:
        return self._is_updating and bool(self._versions.difference(self._engines.urls))

    def _take_lease(self, path: str, lease_s: float | None, is_done: bool) -> None:
        """Update the lease. A sleep gets a lease only on request, because waking up takes memory from the trainer."""
        if not self._gate.stopped or (is_done and path == "/sleep" and lease_s is None):
            self.lease.end()
        elif is_done and path in _STOPS and (lease_s or not self._gate.waits_for(ASLEEP)):
            self.lease.start(lease_s or self.lease.length_s or self._lease_s)

    async def _expire(self) -> None:
        """Resume the policy without the trainer. An unfinished update is aborted, and model calls are rejected."""
        if not self.lease.is_over:
            return
        path, length_s = "/wake_up" if self._gate.waits_for(ASLEEP) else "/resume", self.lease.length_s or self._lease_s
        log.error("no control call for %g s: ending the trainer's pause as if by POST %s", length_s, path)
        self.lease.expire()
        if self._is_unfinished:
            await self._abort_update()
        elif not self._engines.urls:
            for reason in _RESUMES[path]:  # engines that start later are not paused
                self._gate.open(reason)
        else:
            await self._continue_update(path, path, b"")
        if self._gate.stopped:
            retry_s = max(length_s, RETRY_S)
            log.error("the engines did not resume; retrying in %g s", retry_s)
            self.lease.start(retry_s)

    async def _abort_update(self) -> None:
        self._is_updating, self._interrupted = False, True
        self._versions.folder = self._folder
        left = [url for url in self._engines.urls if url in self._versions.invalid]
        for url in left:
            self._versions.hold(url, None, "its trainer stopped responding during an update; restart it")
        await self._engines.all(left, self._loader.abort)
        self._gate.open(PAUSED)
        for url in left:
            self._on_invalid(url)

    async def _stop(self, path: str, target: str, body: bytes, discards_weights: bool) -> list[EngineReply]:
        """Stop the engines. Model calls wait, and continue to wait if all engines that responded have stopped."""
        reason, undo = _STOPS[path]
        with self._gate.shut_while(STOPPING):
            replies = await self._engines.change_each(target, body)
            stopped = [one.url for one in replies if one.ok]
            if discards_weights and path == "/sleep":
                self._hold(stopped, None)
            if stopped and all_succeeded(replies):
                self._engines.unresumed.clear()
                self._gate.shut(reason)
            elif not self._gate.waits_for(reason):
                for url, failure in (await self._engines.all(stopped, lambda url: self._resume(url, undo))).items():
                    self._engines.lose(url, str(failure))
        return replies

    async def _resume(self, url: str, path: str) -> None:
        await self._engines.step(url, path)

    async def _continue_update(self, path: str, target: str, body: bytes) -> list[EngineReply]:
        """Resume the engines. Once one has resumed, model calls are released, and engines that failed leave the pool.
        Model calls are also released if no engine responds, because engines that died are not paused after a restart.
        """
        replies = await self._engines.change_each(target, body)
        if path == "/resume" and not any(one.answered for one in replies):
            self._engines.unresumed.update(one.url for one in replies)
            self._gate.open(PAUSED)
        resumed = [one for one in replies if one.ok]
        if not resumed or (path == "/wake_up" and any(one.get("status") == "sleeping" for one in resumed)):
            return replies
        for one in replies:
            if one.answered and not one.ok:
                self._engines.lose(one.url, str(one.failure(path)))
        for reason in _RESUMES[path]:
            self._gate.open(reason)
        return replies

    async def _start_update(self, target: str, body: bytes) -> list[EngineReply]:
        """Start a weight update. Afterwards, the engines' weights are unknown, unless all engines reject the call."""
        if not self._gate.waits_for(PAUSED):
            raise conflict("a request that runs while weights change crashes vLLM: POST /pause?mode=keep first")
        urls = self._engines.urls
        await self._cpu.check_head(self._versions.model, urls)
        if not self._is_updating:
            self._folder = self._versions.folder
        before = {url: self._versions.held(url) for url in urls if url not in self._versions.invalid}
        was_updating, self._is_updating, self._interrupted = self._is_updating, True, False
        self._hold(urls, None)
        self._versions.invalid.update(urls)
        await self._engines.change_each("/update_weight_version", orjson.dumps({"new_version": CHANGING}))
        replies = await self._engines.change_each(target, body)
        if all(400 <= one.status < 500 and one.answered for one in replies):
            self._is_updating = was_updating
            for url, version in before.items():
                await self._loader.put_back(url, version)
        return replies

    async def _name(self, path: str, target: str, request: Json) -> list[EngineReply]:
        """Name the version on every engine, and make it the policy's once all engines that responded have it."""
        if self._interrupted and path == "/finish_weight_update":
            raise conflict(_INTERRUPTED)
        version = self._next_version(path, request)
        replies = await self._engines.change_each(target, orjson.dumps({**request, _NAMES[path]: version}))
        done = [one.url for one in replies if one.ok]
        self._hold(done, version)
        self._versions.invalid.difference_update(done)
        if path in _CHANGES_WEIGHTS:
            self._versions.folder = None
            self._hold((one.url for one in replies if not one.ok), None)
        if done and all_succeeded(replies):
            self._versions.advance(version, self._versions.folder)
            self._is_updating = False
        return replies

    def _next_version(self, path: str, request: Json) -> str:
        given = request.get(_NAMES[path])
        if given is not None or path == "/update_weight_version":
            version = checked_version(given)
            if path in _CHANGES_WEIGHTS or version != self._versions.now or self._versions.folder is None:
                self._versions.check_name(version)
            return version
        if not self._versions.now.isdecimal():
            raise bad_request(
                f"weight_version is missing, and the version after {self._versions.now!r} cannot be derived"
            )
        return str(int(self._versions.now) + 1)

    def _hold(self, urls: Iterable[str], version: str | None) -> None:
        for url in urls:
            self._versions.hold(url, version)


POSTS = {
    "/pause": "keeps (mode=keep), drains or aborts requests in flight; model calls wait until /resume, or until "
    "lease_s seconds pass without a control call",
    "/resume": "ends a pause",
    "/reset_prefix_cache": "discards the KV cache of old weights",
    "/collective_rpc": "calls a method of the engine's workers, e.g. of a worker extension that receives weights",
    "/init_weight_transfer_engine": "connects the trainer and the engines, e.g. in an NCCL group",
    "/shutdown_weight_transfer_engine": "disconnects them",
    "/start_weight_update": "starts an update, which invalidates the weights; only while paused",
    "/update_weights": "transfers a part of the new weights",
    "/finish_weight_update": "activates the new weights as a new version, `weight_version` or the next number",
    "/update_weight_version": "names the current weights",
    "/sleep": "frees GPU memory for a trainer on the same GPUs; model calls wait until /wake_up",
    "/wake_up": "reclaims the memory",
}
"""Path -> purpose. vLLM's other endpoints are not forwarded."""
GETS = {
    "/is_paused": "state of /pause",
    "/is_sleeping": "state of /sleep",
    "/get_world_size": "number of workers that join an NCCL group",
    "/weight_info": "the engine's own version of its weights",
}


def answer(replies: list[EngineReply]) -> tuple[int, bytes, str]:
    """Return the status, body and content type: of a single engine's response, or of a combined response. Raises
    Failure if an engine failed.
    """
    if len(replies) == 1 and replies[0].content_type == PROBLEM_TYPE:
        raise Failure.of(Problem.model_validate_json(replies[0].body))
    if len(replies) == 1:
        return replies[0].status, replies[0].body, replies[0].content_type
    shown = [{"url": reply.url, "status": reply.status, "body": reply.value} for reply in replies]
    wrong = [reply for reply in replies if not reply.ok]
    if not all_succeeded(replies):
        detail = f"the call failed on {len(wrong)} of {len(replies)} engines; {wrong[0].failure('').problem.detail}"
        problem = Failure(FailureKind.UPSTREAM_ERROR, detail, upstream_status=wrong[0].status).problem
        raise Failure.of(problem.model_copy(update={"engines": shown}))
    lost = {"lost": [reply.url for reply in wrong]} if wrong else {}
    return 200, orjson.dumps({"engines": shown, **lost}), "application/json"


def all_succeeded(replies: list[EngineReply]) -> bool:
    """Return True if at least one engine responded, and the call succeeded on every engine that did."""
    answered = [reply for reply in replies if reply.answered]
    return bool(answered) and all(reply.ok for reply in answered)


T = TypeVar("T")

MAX_LEASE_S = 7 * 24 * 3600.0
_LEASE = "lease_s"


class PauseLease:
    """Manages the lease on the current pause, if it has one. Each control call renews the lease. When it expires, the
    policy resumes automatically, so a dead trainer cannot stop it forever.
    """

    def __init__(self, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_end = on_end
        self.length_s: float | None = None
        """Seconds from the last control call to expiry; None if there is no lease."""
        self._ends = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Future[None] | None = None
        self.expired: Json | None = None
        """Length and expiry (Unix time) of the last lease that expired; None if none has expired."""

    @property
    def left_s(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def start(self, length_s: float) -> None:
        self.end()
        self.length_s = length_s
        self._ends = time.monotonic() + length_s
        self._timer = asyncio.get_running_loop().call_later(length_s, self._over)

    async def during(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run the step and return its result. Restart the lease before and after, because the trainer is alive."""
        if self.length_s is not None:
            self.start(self.length_s)
        try:
            return await step()
        finally:
            if self.length_s is not None:
                self.start(self.length_s)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.length_s = None

    @property
    def is_over(self) -> bool:
        return self.length_s is not None and time.monotonic() >= self._ends

    def expire(self) -> None:
        self.expired = {"lease_s": self.length_s, "at": round(time.time(), 3)}
        self.end()

    def _over(self) -> None:
        self._ends = min(self._ends, time.monotonic())
        self._ending = asyncio.ensure_future(self._on_end())
        self._ending.add_done_callback(lambda done: done.cancelled() or done.exception())  # JobQueue logs it


def split_lease(query: str, request: Json) -> tuple[float | None, str, Json]:
    """Return the lease in seconds that a call requests, and the call's query and body without the lease field, which
    engines do not support. Raises Failure bad_request if the lease is not a number of seconds within the limits.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    requested: Any = next((value for name, value in pairs if name == _LEASE), request.get(_LEASE))
    if requested is None:
        return None, query, request
    try:
        length_s = float(requested) if not isinstance(requested, bool) else math.nan
    except (TypeError, ValueError):
        length_s = math.nan
    if not 0 < length_s <= MAX_LEASE_S:
        raise bad_request(
            f"{_LEASE}: found {str(requested)[:50]!r}; expected a number of seconds between 0 and {MAX_LEASE_S:.0f}"
        )
    rest = urlencode([(name, value) for name, value in pairs if name != _LEASE])
    return length_s, rest, {name: value for name, value in request.items() if name != _LEASE}


_RANK_OFFSET = "rank_offset"


async def ranked_bodies(engines: EngineGroup, request: Json) -> dict[str, bytes]:
    """Return the body of /init_weight_transfer_engine for each engine; empty if all of them get the same one. Raises
    Failure if an engine does not report its number of workers. A trainer sends one `init_info` with the offset of the
    first engine's workers. vLLM's workers add their own number to it, so that the same offset would give workers of two
    engines the same rank.
    """
    info = request.get("init_info")
    if not isinstance(info, dict) or not isinstance(info.get(_RANK_OFFSET), int) or len(engines.urls) < 2:
        return {}
    offset, bodies = info[_RANK_OFFSET], {}
    for reply in await asyncio.gather(*(engines.query(url, "/get_world_size") for url in engines.urls)):
        if not reply.ok:
            raise reply.failure("/get_world_size")
        if not isinstance(size := reply.get("world_size"), int):
            raise upstream_error(f"{reply.url}/get_world_size returned {str(reply.value)[:100]}")
        bodies[reply.url] = orjson.dumps({**request, "init_info": {**info, _RANK_OFFSET: offset}})
        offset += size
    return bodies
