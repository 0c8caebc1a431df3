"""Loader: what is done to one engine when its weights change, step by step.

vLLM 0.32 does not get over a load that fails: the old weights are gone, and a request that runs then ends the process.
It keeps what arrived of them and counts it in the next load: good weights were seen to fail after that, to load, and to
fail again. Such an engine is spoilt, until it is started again.

An engine that is brought back to a version is given the files that the version was loaded from before, or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import orjson

from rollyard.responses_api_models.chat_engine.weights import checkpoint
from rollyard.responses_api_models.chat_engine.weights.checkpoint import Checkpoint
from rollyard.responses_api_models.chat_engine.weights.engine_group import EngineGroup
from rollyard.responses_api_models.chat_engine.weights.policy_versions import CHANGING, STARTED, PolicyVersions
from rollyard.services.errors import Failure, FailureKind

log = logging.getLogger(__name__)

STEP_S = 120.0
"""Longest wait for a step that loads nothing; a pause lasts until the engine's current batch is done."""
LOOK_S = 10.0
"""Longest wait for an answer that an engine has at hand."""


class FilesChanged(Failure):
    """The files that a version was loaded from are others now, or gone: it cannot be loaded again."""


class WeightLoader:
    """The steps. All raise Failure."""

    def __init__(self, engines: EngineGroup, versions: PolicyVersions, locate: Callable[[str], str]) -> None:
        self._engines = engines
        self._versions = versions
        self._locate = locate
        """What an engine was started with -> its folder here."""

    async def pause(self, url: str) -> None:
        """Freeze it; its requests are kept."""
        await self._engines.step(url, "/pause?mode=keep", timeout_s=STEP_S)

    async def resume(self, url: str) -> None:
        """Let it go on."""
        await self._engines.step(url, "/resume", timeout_s=STEP_S)

    async def abort(self, url: str) -> None:
        """End its requests."""
        await self._engines.step(url, "/pause?mode=abort", timeout_s=STEP_S)

    async def bring(self, url: str, source: Checkpoint, version: str) -> None:
        """Give it the weights of a folder. What it holds is unknown from the first step to the last.

        Raises FilesChanged where the folder changed meanwhile: it has loaded something, and not that version.
        """
        self._versions.hold(url, None)
        await self._name(url, CHANGING)
        self._versions.invalid.add(url)
        load = {"method": "reload_weights", "kwargs": {"weights_path": source.folder}}
        said = await self._engines.ask(url, "POST", "/collective_rpc", orjson.dumps(load))
        if not said.ok:
            raise said.failure("/collective_rpc")
        self._versions.invalid.discard(url)
        # With it, requests in flight are computed anew by the new weights; without, their blocks keep the cache alive.
        reset = await self._engines.step(url, "/reset_prefix_cache?reset_running_requests=true", timeout_s=STEP_S)
        if isinstance(reset, dict) and reset.get("success") is False:
            raise Failure(FailureKind.UPSTREAM_ERROR, f"{url} keeps its prefix cache: keys and values of old weights")
        if changed := await asyncio.to_thread(checkpoint.difference, source):
            raise self._lost(url, f"{changed}, while the engine loaded it")
        await self._name(url, version)
        self._versions.hold(url, version)

    async def catch_up(self, url: str) -> None:
        """Bring it from what it was started with to the policy's weights, where they came from a folder.

        Raises FilesChanged, the engine untouched: what it holds counts as unknown then.
        """
        if self._versions.folder:
            await self.restore(url)
        else:
            if self._versions.folder == "":
                await self.check_start(url)
            version = self._versions.now if self._versions.folder == "" else self._versions.first
            await self._name(url, version)
            self._versions.hold(url, version)

    async def restore(self, url: str) -> None:
        """Give it the files of the policy's version. Raises FilesChanged where they are not the same any more."""
        source = await self.source(url)
        await self._check_files(url, source)
        await self.bring(url, source, self._versions.now)

    async def check_start(self, url: str) -> None:
        """Raises FilesChanged: the folder that it was started with holds other files than the first engine found."""
        await self.learn_start(url)
        known = self._versions.fingerprint(self._versions.first)
        if known and (root := await self._root(url)) == self._versions.root:
            folder = await asyncio.to_thread(self._locate, root)  # a link may lead elsewhere by now
            await self._check_files(url, Checkpoint(folder, known))

    async def _check_files(self, url: str, source: Checkpoint) -> None:
        if changed := await asyncio.to_thread(checkpoint.difference, source):
            told = f"version {self._versions.now!r} cannot be loaded again: {changed}"
            advice = "save each version into a folder of its own, and POST /weights/update with one of them"
            raise self._lost(url, f"{told}; {advice}, or start the run again")

    def _lost(self, url: str, told: str) -> FilesChanged:
        self._versions.hold(url, None, told)
        return FilesChanged(FailureKind.UPSTREAM_ERROR, told)

    async def learn(self, url: str) -> None:
        """What it holds, from its own label; one that has none yet is given ours, so that a restart shows."""
        label = await self._label(url)
        if label is None:
            return
        version = self._versions.named(label)
        self._versions.hold(url, version)
        if version is None:
            self._versions.invalid.add(url)
        if label == STARTED:
            await self._name(url, self._versions.first)

    async def learn_start(self, url: str) -> None:
        """Note which files it was started with, where they are visible here: every update is compared with them."""
        if not self._versions.fingerprint(self._versions.first) and (root := await self._root(url)):
            await self.started_with(root)

    async def started_with(self, root: str) -> None:
        """Note the files of a folder, before engines are started with it."""
        if seen := await asyncio.to_thread(lambda: checkpoint.start_checkpoint(self._locate(root))):
            self._versions.started_with(root, seen)

    async def runs_on_cpu(self, url: str) -> bool | None:
        """What vLLM says of its device; False where it does not say (/server_info needs its dev mode), None where it
        gives no answer.
        """
        said = await self._engines.ask(url, "GET", "/server_info?config_format=json", timeout_s=LOOK_S)
        if not said.answered:
            return None
        try:
            return bool(said.ok and said.value["vllm_config"]["device_config"]["device"] == "cpu")
        except (KeyError, TypeError):
            return False

    async def started_again(self, url: str) -> bool:
        """True when its process is another than the one that was spoilt: it holds what it was started with.

        One that gives no answer leaves the pool.
        """
        said = await self._engines.ask(url, "GET", "/weight_info", timeout_s=LOOK_S)
        if not said.answered:
            self._engines.lose(url, str(said.failure("/weight_info")))
        if not said.ok or not isinstance(said.value, dict) or said.value.get("weight_version") != STARTED:
            return False
        self._versions.hold(url, None, "it was started again")
        self._versions.invalid.discard(url)
        return True

    async def is_new(self, url: str) -> bool:
        """Whether its process is another than the one that a version was named on: what it holds is unknown then."""
        said = await self._engines.ask(url, "GET", "/weight_info", timeout_s=LOOK_S)
        if not said.ok or not isinstance(said.value, dict) or said.value.get("weight_version") != STARTED:
            return False
        self._versions.hold(url, None, "it was started again")
        return True

    async def answers(self, url: str) -> bool:
        """Whether it is there at all."""
        return (await self._engines.ask(url, "GET", "/weight_info", timeout_s=LOOK_S)).answered

    async def back(self, url: str) -> bool:
        """Whether a lost engine answers and can hold the policy's weights; what it holds now is noted."""
        said = await self._engines.ask(url, "GET", "/weight_info", timeout_s=LOOK_S)
        if not said.answered:
            return False
        if said.ok and isinstance(said.value, dict):
            label = said.value.get("weight_version")
            version = self._versions.named(label) if label != STARTED else None
            self._versions.hold(url, version)
            if label == STARTED:
                self._versions.invalid.discard(url)
            elif version is None:
                self._versions.invalid.add(url)
        return url not in self._versions.invalid

    async def put_back(self, url: str, version: str | None) -> None:
        """It kept what it held: an update that was announced did not begin."""
        if version is not None:
            await self._name(url, version)
        self._versions.hold(url, version)
        self._versions.invalid.discard(url)

    async def source(self, url: str) -> Checkpoint:
        """Where the policy's weights can be loaded from on that engine: a folder, or a name on the hub."""
        if self._versions.folder is None:
            raise Failure(FailureKind.UPSTREAM_ERROR, f"version {self._versions.now!r} came from no folder")
        known = self._versions.checkpoint
        if self._versions.folder:
            return known or Checkpoint(self._versions.folder)
        if root := await self._root(url):
            return known if known and root == self._versions.root else Checkpoint(root)
        told = f"{url} does not say which weights it was started with (`root` at /v1/models)"
        raise Failure(FailureKind.UPSTREAM_ERROR, told)

    async def _root(self, url: str) -> str:
        said = await self._engines.ask(url, "GET", "/v1/models", timeout_s=LOOK_S)
        try:
            return str(said.value["data"][0]["root"])
        except (KeyError, IndexError, TypeError):
            return ""

    async def release(self, url: str) -> None:
        """Let it go on if it was paused by a server that died since: it would keep everybody waiting."""
        said = await self._engines.ask(url, "GET", "/is_paused", timeout_s=LOOK_S)
        paused = said.ok and isinstance(said.value, dict) and said.value.get("is_paused")
        if paused and self._versions.held(url) is not None:
            log.warning("%s was paused, by an earlier run of this server or by somebody else: it goes on", url)
            await self.resume(url)

    async def _label(self, url: str) -> Any:
        said = await self._engines.ask(url, "GET", "/weight_info", timeout_s=LOOK_S)
        if said.ok and isinstance(said.value, dict):
            return said.value.get("weight_version")
        if said.status != 404:  # an engine that counts no versions
            log.warning("which weights it holds cannot be asked: %s", said.failure("/weight_info"))
        return None

    async def _name(self, url: str, version: str) -> None:
        try:
            await self._engines.step(url, "/update_weight_version", {"new_version": version}, STEP_S)
        except Failure as failure:
            if failure.problem.upstream_status != 404:  # an engine that counts no versions
                raise
