"""Protocol: vLLM's own control endpoints on every engine, for trainers that send weights their own way.

    POST /pause?mode=keep, /start_weight_update, /update_weights ..., /finish_weight_update, /resume

The order is kept where vLLM 0.32 does not keep it: between start and finish its weights are not there, and a request
that runs then ends its process. One call follows another, updates from a folder among them, and each is a plain
sequence: refuse, ask every engine, note what they said. So what is known of the engines is what they said last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

import orjson

from rollyard.responses_api_models.chat_engine.weights.call_gate import ASLEEP, PAUSED, STOPPING, UPDATING, Gate
from rollyard.responses_api_models.chat_engine.weights.control_endpoints import all_succeeded
from rollyard.responses_api_models.chat_engine.weights.cpu_limits import CpuLimits
from rollyard.responses_api_models.chat_engine.weights.engine_group import EngineGroup, EngineReply
from rollyard.responses_api_models.chat_engine.weights.job_queue import JobQueue
from rollyard.responses_api_models.chat_engine.weights.joining_engines import JoiningEngines
from rollyard.responses_api_models.chat_engine.weights.model_signature import check_announced
from rollyard.responses_api_models.chat_engine.weights.pause_lease import PauseLease, split_lease
from rollyard.responses_api_models.chat_engine.weights.policy_versions import CHANGING, PolicyVersions, checked_version
from rollyard.responses_api_models.chat_engine.weights.rejections import conflict
from rollyard.responses_api_models.chat_engine.weights.weight_loader import STEP_S, WeightLoader
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.request import read_object
from rollyard.services.types import Json

log = logging.getLogger(__name__)

ASK_AGAIN_S = 5.0
"""Shortest pause before engines are asked again that did not go on at the end of a lease."""
_BY_RPC = frozenset({"reload_weights", "start_weight_update", "update_weights", "finish_weight_update"})
"""Methods of workers that have an endpoint here, which keeps account of the version."""
_STOPS = {"/pause": (PAUSED, "/resume"), "/sleep": (ASLEEP, "/wake_up")}
"""Path -> why model calls wait after it, and what undoes it."""
_GOES_ON = {"/resume": (PAUSED,), "/wake_up": (ASLEEP, PAUSED)}
"""Path -> what it ends; vLLM's wake_up resumes, too."""
_NAMES = {"/finish_weight_update": "weight_version", "/update_weight_version": "new_version"}
"""Path -> the field with the version that it brings."""
_BROKEN_OFF = (
    "the lease of the pause ended in the middle of this update, which was broken off: begin again with POST /pause and "
    "/start_weight_update"
)
_TAKES_WEIGHTS = frozenset({"/update_weights", "/finish_weight_update", "/collective_rpc"})


class VllmControl:
    """Passes control calls on and keeps account of what they do to the policy."""

    def __init__(
        self,
        engines: EngineGroup,
        loader: WeightLoader,
        versions: PolicyVersions,
        gate: Gate,
        jobs: JobQueue,
        newcomers: JoiningEngines,
        cpu: CpuLimits,
        on_invalid: Callable[[str], None],
        lease_s: float,
    ) -> None:
        self._engines = engines
        self._loader = loader
        self._versions = versions
        self._gate = gate
        self._jobs = jobs
        self._joining_engines = newcomers
        self._cpu = cpu
        self._on_invalid = on_invalid
        self._lease_s = lease_s
        self._folder: str | None = ""
        """Of the weights before an update that was begun."""
        self._begun = False
        """Between /start_weight_update and /finish_weight_update."""
        self._broken_off = False
        """The lease ended in between."""
        self.lease = PauseLease(lambda: self._jobs.run(self._expire()))

    async def post(self, path: str, query: str, body: bytes) -> list[EngineReply]:
        """What every engine says to that call. Raises Failure when it would do harm now."""
        request = read_object(body) if body else {}
        if path == "/collective_rpc" and (method := request.get("method")) in _BY_RPC:
            own = "/weights/update" if method == "reload_weights" else f"/{method}"
            raise Failure(FailureKind.BAD_REQUEST, f"method {method!r} has an endpoint of its own here: POST {own}")
        if self._gate.waits_for(UPDATING):
            raise conflict(f"{UPDATING}; wait for its answer")
        lease_s = None
        if path in _STOPS:
            lease_s, query, rest = split_lease(query, request)
            body = orjson.dumps(rest) if rest != request else body

        async def step() -> list[EngineReply]:
            said = await self.lease.during(lambda: self._pass_on(path, query, body, request))
            self._take_lease(path, lease_s, any(one.ok for one in said))
            return said

        return await self._jobs.run(step())

    async def update(self, step: Callable[[], Awaitable[Json]]) -> Json:
        """What an update from a folder returns. A pause that it leaves behind, because an engine does not go on, has a
        lease as every other.
        """
        try:
            return await self._jobs.run(self.lease.during(step))
        finally:
            if self._gate.waits_for(PAUSED) and not self._gate.waits_for(ASLEEP) and self.lease.length_s is None:
                self.lease.begin(self._lease_s)

    async def get(self, path: str, query: str) -> list[EngineReply]:
        """What every engine says to a question."""
        return await self._engines.each("GET", f"{path}?{query}" if query else path)

    async def _pass_on(self, path: str, query: str, body: bytes, request: Json) -> list[EngineReply]:
        target = f"{path}?{query}" if query else path
        if path in ("/resume", "/wake_up", "/update_weight_version"):
            self._check_finished()
        if path in _STOPS:
            return await self._stop(path, target, body, "2" in parse_qs(query).get("level", ()))
        if path in _GOES_ON:
            return await self._continue_update(path, target, body)
        if path == "/start_weight_update":
            return await self._take_away(target, body)
        if path in _NAMES:
            return await self._name(path, target, request)
        if path == "/update_weights":
            if self._broken_off:
                raise conflict(_BROKEN_OFF)
            check_announced(request, self._versions.model)
        if path == "/init_weight_transfer_engine" and self._stopped:
            await self._joining_engines.join()
        said = await self._engines.each_does(target, body)
        if path in _TAKES_WEIGHTS:
            self._versions.folder = None
            self._hold((one.url for one in said if not one.ok), None)
        return said

    @property
    def _stopped(self) -> bool:
        return self._gate.waits_for(PAUSED) or self._gate.waits_for(ASLEEP)

    def _take_lease(self, path: str, lease_s: float | None, is_done: bool) -> None:
        """A sleep has none unless it asks for one: waking up would take back the memory that a trainer trains in."""
        if not self._stopped or (is_done and path == "/sleep" and lease_s is None):
            self.lease.end()
        elif is_done and path in _STOPS and (lease_s or not self._gate.waits_for(ASLEEP)):
            self.lease.begin(lease_s or self.lease.length_s or self._lease_s)

    async def _expire(self) -> None:
        """The policy goes on without the trainer. After half an update it is refused."""
        if not self.lease.is_over:
            return
        path, length_s = "/wake_up" if self._gate.waits_for(ASLEEP) else "/resume", self.lease.length_s or self._lease_s
        log.error("no control call came for %g s: the trainer's pause ends here, as by POST %s", length_s, path)
        self.lease.expire()
        if self._begun and self._versions.difference(self._engines.urls):
            await self._abort_update()
        elif not self._engines.urls:
            for reason in _GOES_ON[path]:  # engines that come up are not paused
                self._gate.open(reason)
        else:
            await self._continue_update(path, path, b"")
        if self._stopped:
            again_s = max(length_s, ASK_AGAIN_S)
            log.error("the engines do not go on; they are asked again in %g s", again_s)
            self.lease.begin(again_s)

    async def _abort_update(self) -> None:
        self._begun, self._broken_off = False, True
        self._versions.folder = self._folder
        left = [url for url in self._engines.urls if url in self._versions.invalid]
        for url in left:
            self._versions.hold(url, None, "its trainer went silent in the middle of an update; start it again")
        await self._engines.all(left, self._loader.abort)
        self._gate.open(PAUSED)
        for url in left:
            self._on_invalid(url)

    def _check_finished(self) -> None:
        if self._begun and self._versions.difference(self._engines.urls):
            end = "POST /finish_weight_update first, or start the engines again"
            raise conflict(f"a weight update was begun and not finished, and a request that runs now ends vLLM: {end}")

    async def _stop(self, path: str, target: str, body: bytes, throws_weights_away: bool) -> list[EngineReply]:
        """Model calls wait while engines stop, and after that only if all that answered have stopped."""
        reason, undo = _STOPS[path]
        with self._gate.shut_while(STOPPING):
            said = await self._engines.each_does(target, body)
            stopped = [one.url for one in said if one.ok]
            if throws_weights_away and path == "/sleep":
                self._hold(stopped, None)
            if stopped and all_succeeded(said):
                self._engines.unresumed.clear()
                self._gate.shut(reason)
            elif not self._gate.waits_for(reason):
                await asyncio.gather(*(self._undo(url, undo) for url in stopped))
        return said

    async def _undo(self, url: str, path: str) -> None:
        try:
            await self._engines.step(url, path, timeout_s=STEP_S)
        except Failure as failure:
            self._engines.lose(url, str(failure))

    async def _continue_update(self, path: str, target: str, body: bytes) -> list[EngineReply]:
        """Model calls wait no longer once an engine goes on; those that do not are out of the pool.

        Nor do they where none answers: engines that died are not paused when they are started again.
        """
        said = await self._engines.each_does(target, body)
        if path == "/resume" and not any(one.answered for one in said):
            self._engines.unresumed.update(one.url for one in said)
            self._gate.open(PAUSED)
        going = [one for one in said if one.ok]
        if not going or (path == "/wake_up" and any(_asleep(one.value) for one in going)):
            return said
        for one in said:
            if one.answered and not one.ok:
                self._engines.lose(one.url, str(one.failure(path)))
        for reason in _GOES_ON[path]:
            self._gate.open(reason)
        return said

    async def _take_away(self, target: str, body: bytes) -> list[EngineReply]:
        """Start a weight update. What an engine holds is unknown from here on, unless all have refused."""
        if not self._gate.waits_for(PAUSED):
            told = "a request that runs while an engine's weights change ends vLLM: POST /pause?mode=keep first"
            raise conflict(told)
        urls = self._engines.urls
        await self._cpu.check_head(self._versions.model, urls)
        if not self._begun:
            self._folder = self._versions.folder
        before = {url: self._versions.held(url) for url in urls if url not in self._versions.invalid}
        begun, self._begun, self._broken_off = self._begun, True, False
        self._hold(urls, None)
        self._versions.invalid.update(urls)
        await self._engines.each_does("/update_weight_version", orjson.dumps({"new_version": CHANGING}))
        said = await self._engines.each_does(target, body)
        if all(400 <= one.status < 500 and one.answered for one in said):
            self._begun = begun
            for url, version in before.items():
                await self._loader.put_back(url, version)
        return said

    async def _name(self, path: str, target: str, request: Json) -> list[EngineReply]:
        """Another version, once all that answered have it."""
        if self._broken_off and path == "/finish_weight_update":
            raise conflict(_BROKEN_OFF)
        version = self._next_version(path, request)
        said = await self._engines.each_does(target, orjson.dumps({**request, _NAMES[path]: version}))
        done = [one.url for one in said if one.ok]
        self._hold(done, version)
        self._versions.invalid.difference_update(done)
        if path in _TAKES_WEIGHTS:
            self._versions.folder = None
            self._hold((one.url for one in said if not one.ok), None)
        if done and all_succeeded(said):
            self._versions.advance(version, self._versions.folder)
            self._begun = False
        return said

    def _next_version(self, path: str, request: Json) -> str:
        given = request.get(_NAMES[path])
        if given is not None or path == "/update_weight_version":
            version = checked_version(given)
            if path in _TAKES_WEIGHTS or version != self._versions.now or self._versions.folder is None:
                self._versions.check_name(version)
            return version
        if not self._versions.now.isdecimal():
            told = f"weight_version is missing, and what comes after version {self._versions.now!r} cannot be guessed"
            raise Failure(FailureKind.BAD_REQUEST, told)
        return str(int(self._versions.now) + 1)

    def _hold(self, urls: Iterable[str], version: str | None) -> None:
        for url in urls:
            self._versions.hold(url, version)


def _asleep(value: Any) -> bool:
    return isinstance(value, dict) and value.get("status") == "sleeping"
