"""Protocol: vLLM's own control endpoints on every engine, for trainers that send weights their own way.

    POST /pause?mode=keep, /start_weight_update, /update_weights ..., /finish_weight_update, /resume

The order is kept where vLLM 0.32 does not keep it: between start and finish its weights are not there, and a request
that runs then ends its process.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import orjson

from responses_api_models.chat_engine.trainer.engines import Engines, Said
from responses_api_models.chat_engine.trainer.gate import ASLEEP, PAUSED, UPDATING, Gate
from responses_api_models.chat_engine.trainer.versions import CHANGING, Versions, checked
from services.call import read_object
from services.client import PROBLEM_TYPE
from services.errors import Failure, FailureKind
from services.types import Json, Problem

POSTS = {
    "/pause": "freezes (mode=keep), drains or aborts what is in flight; model calls wait here until /resume",
    "/resume": "ends a pause",
    "/reset_prefix_cache": "forgets keys and values of old weights",
    "/collective_rpc": "a method of the engine's workers, e.g. of a worker extension that takes weights",
    "/init_weight_transfer_engine": "joins trainer and engines, e.g. in a NCCL group",
    "/shutdown_weight_transfer_engine": "parts them",
    "/start_weight_update": "takes the weights away; only while paused",
    "/update_weights": "brings a part of the new ones",
    "/finish_weight_update": "puts them in place: another version, `weight_version` or the next number",
    "/update_weight_version": "names the weights that are there",
    "/sleep": "gives GPU memory to a trainer on the same GPUs; model calls wait here until /wake_up",
    "/wake_up": "takes it back",
}
"""Path -> what it is needed for. Others that vLLM has are not passed on."""
GETS = {
    "/is_paused": "state of /pause",
    "/is_sleeping": "state of /sleep",
    "/get_world_size": "how many workers join a NCCL group",
    "/weight_info": "the engine's own name for its weights",
}
_BY_RPC = frozenset({"reload_weights", "start_weight_update", "update_weights", "finish_weight_update"})
"""Methods of workers that have an endpoint here, which keeps account of the version."""
_STOPS = {"/pause": PAUSED, "/sleep": ASLEEP}
_TAKES_WEIGHTS = frozenset({"/start_weight_update", "/update_weights", "/finish_weight_update", "/collective_rpc"})


class Protocol:
    """Passes control calls on and keeps account of what they do to the policy."""

    def __init__(self, engines: Engines, versions: Versions, gate: Gate) -> None:
        self._engines = engines
        self._versions = versions
        self._gate = gate
        self._begun = False
        """Between /start_weight_update and /finish_weight_update."""

    async def post(self, path: str, query: str, body: bytes) -> list[Said]:
        """What every engine says to that call. Raises Failure when it would do harm now."""
        request = read_object(body) if body else {}
        self._refuse(path, request)
        version = self._next_version(path, request)
        if path == "/finish_weight_update":
            body = orjson.dumps({**request, "weight_version": version})
        if path in _STOPS:
            self._gate.shut(_STOPS[path])
        if path == "/start_weight_update":
            self._begun = True
            self._hold_all(None)
            self._versions.spoilt.update(self._engines.urls)
            label = orjson.dumps({"new_version": CHANGING})
            await self._engines.each("POST", "/update_weight_version", label)
        said = await self._engines.each("POST", f"{path}?{query}" if query else path, body)
        self._note(path, query, said, version)
        return said

    async def get(self, path: str, query: str) -> list[Said]:
        """What every engine says to a question."""
        return await self._engines.each("GET", f"{path}?{query}" if query else path)

    def _refuse(self, path: str, request: Json) -> None:
        if self._gate.waits_for(UPDATING):
            raise _not_now(f"{UPDATING}; wait for its answer")
        if path == "/start_weight_update" and not self._gate.waits_for(PAUSED):
            raise _not_now(
                "a request that runs while an engine's weights change ends vLLM: POST /pause?mode=keep first"
            )
        unfinished = self._begun and bool(self._versions.difference(self._engines.urls))
        if path in ("/resume", "/wake_up", "/update_weight_version") and unfinished:
            end = "POST /finish_weight_update first, or start the engines again"
            raise _not_now(f"a weight update was begun and not finished, and a request that runs now ends vLLM: {end}")
        if path == "/collective_rpc" and (method := request.get("method")) in _BY_RPC:
            own = "/weights/update" if method == "reload_weights" else f"/{method}"
            raise Failure(FailureKind.BAD_REQUEST, f"method {method!r} has an endpoint of its own here: POST {own}")

    def _next_version(self, path: str, request: Json) -> str:
        """The version that the call brings; empty for a call that brings none."""
        field = {"/finish_weight_update": "weight_version", "/update_weight_version": "new_version"}.get(path)
        if field is None:
            return ""
        if request.get(field) is not None or path == "/update_weight_version":
            return checked(request.get(field))
        if not self._versions.now.isdecimal():
            told = f"weight_version is missing, and what comes after version {self._versions.now!r} cannot be guessed"
            raise Failure(FailureKind.BAD_REQUEST, told)
        return str(int(self._versions.now) + 1)

    def _note(self, path: str, query: str, said: list[Said], version: str) -> None:
        """What the call has done, now that the engines have answered."""
        done = all(one.ok for one in said)
        if path in _STOPS and not any(one.ok for one in said):
            self._gate.open(_STOPS[path])
        if path in _TAKES_WEIGHTS:
            self._versions.folder = None
        for one in said:
            if version and one.ok:
                self._versions.hold(one.url, version)
                self._versions.spoilt.discard(one.url)
            elif path in _TAKES_WEIGHTS and not one.ok:
                self._versions.hold(one.url, None)
        if not done:
            return
        if version:
            self._versions.advance(version, self._versions.folder)
            self._begun = False
        elif path == "/resume":
            self._gate.open(PAUSED)
        elif path == "/wake_up" and not any(_asleep(one.value) for one in said):
            self._gate.open(ASLEEP)
            self._gate.open(PAUSED)  # vLLM's wake_up resumes, too
        elif path == "/sleep" and "2" in parse_qs(query).get("level", ()):
            self._hold_all(None)  # its weights are thrown away

    def _hold_all(self, version: str | None) -> None:
        for url in self._engines.urls:
            self._versions.hold(url, version)


def answer(said: list[Said]) -> tuple[int, bytes, str]:
    """Status, body and content type: one engine's answer as it is, or those of several. Raises Failure."""
    if len(said) == 1 and said[0].content_type == PROBLEM_TYPE:
        raise Failure.of(Problem.model_validate_json(said[0].body))
    if len(said) == 1:
        return said[0].status, said[0].body, said[0].content_type
    shown = [one.shown() for one in said]
    if wrong := [one for one in said if not one.ok]:
        first = wrong[0].failure("").problem
        told = f"{len(wrong)} of {len(said)} engines did not do it; {first.detail}"
        problem = Failure(FailureKind.UPSTREAM_ERROR, told, upstream_status=wrong[0].status).problem
        raise Failure.of(problem.model_copy(update={"engines": shown}))
    return 200, orjson.dumps({"engines": shown}), "application/json"


def _asleep(value: Any) -> bool:
    return isinstance(value, dict) and value.get("status") == "sleeping"


def _not_now(told: str) -> Failure:
    return Failure(FailureKind.BAD_REQUEST, told, status=409)
