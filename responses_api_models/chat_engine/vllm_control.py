"""Forwards vLLM's control endpoints to every engine, for trainers that transfer weights themselves.

    POST /pause?mode=keep, /start_weight_update, /update_weights ..., /finish_weight_update, /resume

This server enforces that order because vLLM 0.32 does not: between start and finish, its weights are invalid, and a
running request crashes it. Control calls and updates from a folder run one after another. Each call is checked and sent
to every engine, and its replies are recorded, so the recorded state is always that of the last replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar
from urllib.parse import parse_qs, parse_qsl, urlencode

import orjson
from fastapi import Request
from fastapi.responses import Response

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json, Problem
from rollyard.responses_api_models import streaming
from rollyard.responses_api_models.chat_engine.checkpoint import bad_request, check_announced, conflict, upstream_error
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
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.weight_update import (
    SERVER_INFO,
    CpuLimits,
    EngineGroup,
    EngineReply,
    JobQueue,
    JoiningEngines,
    WeightLoader,
    WeightUpdates,
)
from rollyard.responses_api_models.upstream.response_parsing import json_bytes
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.http.request import PROBLEM_TYPE, Handler, RawRequest, RawResponse, read_object
from rollyard.services.responses.policy_endpoint import POLICY_PATH
from rollyard.services.server.app import Context, Server

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


class VllmControl:
    def __init__(
        self,
        upstream: Upstream,
        settings: ChatEngineSettings,
        on_invalid: Callable[[str], None],
        locate: Callable[[str], str],
    ) -> None:
        self.versions = PolicyVersions(settings.policy_version, is_exclusive=settings.trainer_endpoints)
        self._engines = EngineGroup(upstream)
        self._gate = Gate(self.versions, lambda: self._engines.urls, settings.request_timeout_s)
        self._jobs = JobQueue()
        self._loader = loader = WeightLoader(self._engines, self.versions, locate)
        self._cpu = CpuLimits(self._engines)
        self._joining_engines = JoiningEngines(self._engines, loader, self.versions, self._gate, self._jobs)
        self._gate.resync = self._joining_engines.resync
        self._on_invalid = on_invalid
        self._lease_s = settings.pause_lease_s
        self._folder: str | None = ""
        self._is_updating = False
        self._interrupted = False
        """Whether the lease expired during an update."""
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
            is_done = any(one.ok for one in replies)
            # A sleep gets a lease only on request, because waking up takes memory from the trainer.
            if not self._gate.stopped or (is_done and path == "/sleep" and lease_s is None):
                self.lease.end()
            elif is_done and path in _STOPS and (lease_s or not self._gate.waits_for(ASLEEP)):
                self.lease.start(lease_s or self.lease.length_s or self._lease_s)
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
            check_announced(request, self.versions.model)
        bodies: dict[str, bytes] = {}
        if path == "/init_weight_transfer_engine":
            if self._gate.stopped:
                await self._joining_engines.join()
            bodies = await ranked_bodies(self._engines, request)
        replies = await self._engines.change_each(target, body, bodies)
        if path in _CHANGES_WEIGHTS:
            self.versions.folder = None
            self._hold((one.url for one in replies if not one.ok), None)
        return replies

    @property
    def _is_unfinished(self) -> bool:
        return self._is_updating and bool(self.versions.difference(self._engines.urls))

    async def _expire(self) -> None:
        """Resume the policy without the trainer. An unfinished update is aborted, and model calls are rejected."""
        if self.lease.length_s is None or self.lease.left_s:
            return  # it has been renewed or cancelled since
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
        self.versions.folder = self._folder
        left = [url for url in self._engines.urls if url in self.versions.invalid]
        for url in left:
            self.versions.hold(url, None, "its trainer stopped responding during an update; restart it")
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
                for url, failure in (
                    await self._engines.all(stopped, lambda url: self._engines.step(url, undo))
                ).items():
                    self._engines.lose(url, str(failure))
        return replies

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
        await self._cpu.check_head(self.versions.model, urls)
        if not self._is_updating:
            self._folder = self.versions.folder
        before = {url: self.versions.held(url) for url in urls if url not in self.versions.invalid}
        was_updating, self._is_updating, self._interrupted = self._is_updating, True, False
        self._hold(urls, None)
        self.versions.invalid.update(urls)
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
        self.versions.invalid.difference_update(done)
        if path in _CHANGES_WEIGHTS:
            self.versions.folder = None
            self._hold((one.url for one in replies if not one.ok), None)
        if done and all_succeeded(replies):
            self.versions.advance(version, self.versions.folder)
            self._is_updating = False
        return replies

    def _next_version(self, path: str, request: Json) -> str:
        given = request.get(_NAMES[path])
        if given is not None or path == "/update_weight_version":
            version = checked_version(given)
            if path in _CHANGES_WEIGHTS or version != self.versions.now or self.versions.folder is None:
                self.versions.check_name(version)
            return version
        if not self.versions.now.isdecimal():
            raise bad_request(
                f"weight_version is missing, and the version after {self.versions.now!r} cannot be derived"
            )
        return str(int(self.versions.now) + 1)

    def _hold(self, urls: Iterable[str], version: str | None) -> None:
        for url in urls:
            self.versions.hold(url, version)


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
    """Return the status, body and content type: of a single engine's response, or of a combined response.

    Raises Failure if an engine failed.
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
    """Manages the lease on the current pause, if it has one.

    Each control call renews the lease. When it expires, the policy resumes automatically, so a dead trainer cannot stop
    it forever.
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

    def expire(self) -> None:
        self.expired = {"lease_s": self.length_s, "at": round(time.time(), 3)}
        self.end()

    def _over(self) -> None:
        self._ends = min(self._ends, time.monotonic())
        self._ending = asyncio.ensure_future(self._on_end())
        self._ending.add_done_callback(lambda done: done.cancelled() or done.exception())  # JobQueue logs it


def split_lease(query: str, request: Json) -> tuple[float | None, str, Json]:
    """Return the lease in seconds that a call requests, and the call's query and body without the lease field, which
    engines do not support.

    Raises Failure bad_request if the lease is not a number of seconds within the limits.
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
    """Return the body of /init_weight_transfer_engine for each engine; empty if all of them get the same one.

    Raises Failure if an engine does not report its number of workers.

    A trainer sends one `init_info` with the offset of the first engine's workers. vLLM's workers add their own number
    to it, so that the same offset would give workers of two engines the same rank.
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


UPDATE = "/weights/update"
STATUS = "/weights"
LOG_PROBS = "/weights/log_probs"
LEASE_HEADER = b"x-rollyard-pause-lease"
"""Header of the responses to control calls during a pause: seconds until the pause ends automatically."""
FORWARDED = {
    "/tokenize": "/../tokenize",
    "/detokenize": "/../detokenize",
    "/v1/completions": "/completions",
    "/inference/v1/generate": "/../inference/v1/generate",
    "/v1/chat/completions/render": "/chat/completions/render",
    "/v1/chat/completions/derender": "/chat/completions/derender",
}
_SAMPLE = ("/v1/completions", "/inference/v1/generate")


class TrainerApi(VllmControl):
    """The trainer's endpoints. They are disabled unless `trainer_endpoints` is set, which requires a run token, because
    every caller can change the policy of a running collection.
    """

    def __init__(
        self,
        upstream: Upstream,
        settings: ChatEngineSettings,
        context: Context,
        on_invalid: Callable[[str], None],
        locate: Callable[[str], str],
    ) -> None:
        if settings.trainer_endpoints and not context.keys.token:
            raise OperatorError(f"{settings.token_needed_for}: set a run token, or remove trainer_endpoints")
        super().__init__(upstream, settings, on_invalid, locate)
        self._server = context.name
        self._upstream = upstream
        self._model = settings.model
        self._open = settings.trainer_endpoints
        self._log_probs = EngineLogProbs(self._engines, self.versions, self._gate, settings.model)
        self._seeds = (settings.extra_body, settings.sampling_overrides)
        self._weights = WeightUpdates(
            self._engines, self._loader, self.versions, self._gate, self._cpu, on_invalid, settings.weights_check
        )
        upstream.engine_model = self.versions.engine_model
        upstream.blocked = self._gate.update
        self._watching: asyncio.Task[None] | None = None
        self.started_with = self._loader.started_with
        """Records the files of a folder before engines are started with it; they may have changed at a restart."""
        self.gone = self._engines.forget

    def guarded(self, path: str, handler: Handler) -> Handler:
        """Put the handler of a call to this server's policy behind the gate; return any other handler unchanged."""
        return handler if path in (UPDATE, POLICY_PATH) or path in POSTS else self._gate.guarded(handler)

    def mount(self, server: Server) -> None:
        """Register the endpoints. If they are disabled, they return an error that says how to enable them."""
        server.app.get("/policy_version")(self._policy_version)
        if not self._open:

            async def closed(_: Request) -> Response:
                detail = f"this trainer endpoint is disabled: set trainer_endpoints: true on {self._server}"
                raise Failure(FailureKind.BAD_REQUEST, f"{detail} and set a run token", status=404)

            # Starlette's routes: FastAPI would analyse the parameters of two dozen functions that have none.
            for path in (*FORWARDED, UPDATE, LOG_PROBS, *POSTS):
                server.app.add_route(path, closed, ["POST"], include_in_schema=False)
            for path in (STATUS, *GETS):
                server.app.add_route(path, closed, ["GET"], include_in_schema=False)
            return
        for path, target in FORWARDED.items():
            server.route(path, self._forward(path, target), cancellable=True)
        server.route(UPDATE, self._update)
        server.route(LOG_PROBS, self._read_log_probs, cancellable=True)
        server.app.get(STATUS)(self._status)
        for path, reason in POSTS.items():
            server.route(path, self._control_post(path, reason))
        server.audit(UPDATE, *POSTS)
        for path, reason in GETS.items():
            server.app.get(path, summary=f"On every engine: {reason}")(self._control_get(path))

    async def start(self) -> None:
        """Ask running engines for their weights and devices, and start watching them."""
        if self._open:
            await self._joining_engines.learn()
            await self._cpu.learn(self._engines.urls)
            self._cpu.check_settings(self._server, self._seeds)
            self._watching = asyncio.create_task(self._joining_engines.watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self.lease.end()
        await self._jobs.settle()

    async def register_engine(self, url: str) -> None:
        """Load the policy's weights into an engine that has just started, then add it to the pool of `upstream`. An
        update may have replaced the weights that it started with. Raises Failure if it does not load them (e.g. because
        the folder of the last update was removed); it is then not in the pool and should be restarted.
        """
        if self._open:
            await self._cpu.learn([url])
            await self._joining_engines.register_engine(url)
        else:
            await self._joining_engines.register_with_start_weights(url)

    async def takes_seeds(self) -> bool:
        return not self._open or await self._cpu.takes_seeds()

    async def check_seed(self, body: Json) -> None:
        """Raises Failure bad_request for a request with a seed if a weight update would crash its engine."""
        if self._open:
            await self._cpu.check_seed(body)

    async def _policy_version(self) -> Response:
        """Return the policy's version, or a problem document while engines have different versions."""
        await self._gate.look()
        return _response(self._gate.with_version(orjson.dumps({"policy_version": self.versions.now})))

    async def _status(self) -> Response:
        """Return the policy's version and files, the version on each engine, and the current pause lease."""
        versions, lease = self.versions, self.lease
        urls = self._engines.urls
        now = versions.checkpoint
        status = {
            "version": versions.now,
            "path": now.folder if now else versions.folder or None,
            "kind": "adapter" if versions.has_adapter else "weights",
            "fingerprint": versions.fingerprint(versions.now) or None,
            "difference": versions.difference(urls) or None,
            "engines": [{"url": url, "version": versions.held(url)} for url in urls],
            "on_cpu": self._cpu.on_cpu(urls),
            "lost": list(self._engines.lost),
            "waits_for": self._gate.reasons,
            "lease": {"lease_s": lease.length_s, "left_s": lease.left_s} if lease.length_s else None,
            "lease_expired": lease.expired,
        }
        return _response(self._gate.with_version(orjson.dumps(status)))

    async def _update(self, call: RawRequest) -> RawResponse:
        """Load new weights into all engines. Body: `{"path": folder, "version": name}`, and `"kind": "adapter"` if the
        folder contains a LoRA adapter. Running requests are kept; those of adapters are finished first.
        """
        request = call.json()
        if unknown := request.keys() - {"path", "version", "kind"}:
            raise bad_request(f"found {', '.join(sorted(unknown))}; expected only path, version and kind")
        if (kind := request.get("kind", "weights")) not in ("weights", "adapter"):
            raise bad_request(f"kind: found {str(kind)[:100]!r}; expected 'weights' or 'adapter'")
        folder, version = request.get("path"), request.get("version")
        if not isinstance(folder, str) or not folder:
            raise bad_request(f"path: found {folder!r}; expected the folder with the new weights")
        name = checked_version(version) if version is not None else None
        done = await self.update(lambda: self._weights.update(folder, name, adapter=kind == "adapter"))
        return self._gate.with_version(orjson.dumps(done))

    async def _read_log_probs(self, call: RawRequest) -> bytes:
        """Return every engine's log-probabilities of the given token ids, `{"sequences": [[1, 2, 3], ...]}`."""
        return orjson.dumps(await self._log_probs.read(call.json()))

    def _forward(self, path: str, target: str) -> Handler:
        async def forwarded(call: RawRequest) -> bytes | RawResponse:
            body = call.json()
            body["model"] = self._model
            if path in _SAMPLE:
                await self.check_seed(body)
            request_context = RequestContext.of(call)
            if path in _SAMPLE and body.get("stream"):
                chunks = await self._upstream.stream(target, orjson.dumps(body), request_context)
                return request_context.streamed(streaming.chat(chunks, streaming.event_reporter(self._server, call)))
            return request_context.answered(
                await self._upstream.post(target, orjson.dumps(body), json_bytes, request_context)
            )

        forwarded.__doc__ = (
            f"The engine's own {path}, on the least busy engine or the one that serves the episode (x-session-id)."
        )
        return forwarded

    def _control_post(self, path: str, reason: str) -> Handler:
        async def posted(call: RawRequest) -> RawResponse:
            replies = await self.post(path, call.query.decode("latin-1"), call.body)
            status, body, content_type = answer(replies)
            lease_s = self.lease.length_s
            headers = ((LEASE_HEADER, f"{lease_s:g}".encode()),) if lease_s else ()
            return self._gate.with_version(RawResponse(body, status, headers, content_type.encode()))

        posted.__doc__ = f"On every engine: {reason}."
        return posted

    def _control_get(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def got(request: Request) -> Response:
            status, body, content_type = answer(await self.get(path, request.url.query))
            return _response(self._gate.with_version(RawResponse(body, status, content_type=content_type.encode())))

        return got


def _response(reply: RawResponse) -> Response:
    headers = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
    return Response(reply.body, reply.status, headers, reply.content_type.decode())


MAX_TOKENS = 65_536
"""Limit of a request, because vLLM computes the logits of all tokens of a prompt together."""
SAMPLED_TOKENS = 32
"""How many tokens an engine with LoRA samples for each sequence."""


class EngineLogProbs:
    """Log-probabilities of given token sequences, from every engine: a trainer compares them with its own. They are
    those at temperature 1, without any constraint, of prompts, which vLLM computes without its prefix cache. An engine
    with --enable-lora samples tokens instead, because vLLM 0.32 dies on a CPU if it computes the log-probabilities of a
    prompt together with another request (add_lora_logits in punica_cpu.py; not tried on a GPU).
    """

    def __init__(self, engines: EngineGroup, versions: PolicyVersions, gate: Gate, model: str) -> None:
        self._engines = engines
        self._versions = versions
        self._gate = gate
        self._model = model

    async def read(self, request: Json) -> Json:
        """Return the version and, for each engine, sequences with the log-probabilities of their last tokens. An engine
        that does not respond while another does leaves the pool, as in an update. Raises Failure if no engine responds,
        if one refuses the tokens, or if the weights changed in the meantime.
        """
        sequences = _sequences(request)
        urls, mark = self._engines.urls, self._versions.mark
        found: dict[str, list[Json]] = {}

        async def ask(url: str) -> None:
            one = self._sampled if await self._has_lora(url) else self._of_prompt
            found[url] = await asyncio.gather(*(one(url, ids) for ids in sequences))

        if failed := await self._engines.all(urls, ask):
            raise next(iter(failed.values()))
        if not found:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        self._gate.check()
        if self._versions.mark != mark:
            raise Failure(FailureKind.UPSTREAM_ERROR, "the weights changed during the request; repeat it", status=503)
        engines = [{"url": url, "sequences": found[url]} for url in urls if url in found]
        return {"version": self._versions.now, "engines": engines}

    async def _has_lora(self, url: str) -> bool:
        reply = await self._engines.query(url, SERVER_INFO)
        return self._versions.has_adapter or bool(reply.get("vllm_config", "lora_config"))

    async def _of_prompt(self, url: str, ids: list[int]) -> Json:
        """Return a sequence with the log-probability of every token but the first."""
        reply = await self._ask(url, ids, {"max_tokens": 1, "prompt_logprobs": 0})
        with _readable(url):
            listed = reply.value["choices"][0]["prompt_logprobs"]
            pairs = zip(ids[1:], listed[1:], strict=True)
            return {"ids": ids, "log_probs": [float(entry[str(token)]["logprob"]) for token, entry in pairs]}

    async def _sampled(self, url: str, ids: list[int]) -> Json:
        """Return the first half of a sequence with tokens that the engine then samples, and their log-probabilities."""
        start = ids[: len(ids) // 2]
        own = {"max_tokens": SAMPLED_TOKENS, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
        reply = await self._ask(url, start, own)
        with _readable(url):
            choice = reply.value["choices"][0]
            generated = [int(token) for token in choice["token_ids"]]
            log_probs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
            if not generated or len(generated) != len(log_probs):
                raise ValueError(f"{len(generated)} tokens")
            return {"ids": [*start, *generated], "log_probs": log_probs}

    async def _ask(self, url: str, prompt: list[int], own: Json) -> EngineReply:
        model = self._versions.engine_model() or self._model
        body = {"model": model, "prompt": prompt, "temperature": 1.0, **own}
        reply = await self._engines.request(url, "POST", "/v1/completions", orjson.dumps(body))
        if reply.answered and 400 <= reply.status < 500:
            raise bad_request(str(reply.failure("/v1/completions").problem.detail))
        if not reply.ok:
            raise reply.failure("/v1/completions")
        return reply


@contextlib.contextmanager
def _readable(url: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        detail = f"{url} returned no log-probabilities of tokens ({type(error).__name__}: {error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error


def _sequences(request: Json) -> list[list[int]]:
    if unknown := request.keys() - {"sequences"}:
        raise bad_request(f"found {', '.join(sorted(unknown))}; expected only sequences")
    found = request.get("sequences")
    if not isinstance(found, list) or not found or not all(map(_is_sequence, found)):
        raise bad_request("sequences: expected a list of lists of two or more token ids")
    if (tokens := sum(map(len, found))) > MAX_TOKENS:
        raise bad_request(f"sequences: found {tokens} tokens; the limit is {MAX_TOKENS} per request")
    return found


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(type(token) is int and token >= 0 for token in value)
