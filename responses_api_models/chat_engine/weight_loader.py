"""The steps of a weight change on one engine, and what vLLM cannot do on a CPU.

vLLM 0.32 does not recover from a failed load: the old weights are lost, and a running request crashes the process. It
keeps the parts that were loaded and counts them in the next load; in tests, later loads of valid weights sometimes
failed and sometimes succeeded. After a failed load, an engine's weights are therefore invalid until it is restarted.

To restore a version, an engine loads the same files as before; if they have changed, it loads nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine import checkpoint
from rollyard.responses_api_models.chat_engine.checkpoint import (
    Checkpoint,
    ModelSignature,
    adapter_name,
    bad_request,
    version_of,
)
from rollyard.responses_api_models.chat_engine.engine_group import QUERY_S, STEP_S, EngineGroup, EngineReply
from rollyard.responses_api_models.chat_engine.policy_versions import CHANGING, STARTED, PolicyVersions

log = logging.getLogger(__name__)

DRAIN_S = 30.0
"""How long requests in flight may continue before an adapter replaces another one. They are aborted then, and the model
server repeats them."""
_TIMED_OUT = 504


class FilesChanged(Failure):
    """The files of a version were changed or removed, so it cannot be loaded again."""


class WeightLoader:
    """The steps on one engine. All of them raise Failure if the engine reports an error."""

    def __init__(self, engines: EngineGroup, versions: PolicyVersions, locate: Callable[[str], str]) -> None:
        self._engines = engines
        self._versions = versions
        self._locate = locate
        """Maps the model that an engine was started with to its local folder."""
        self._adapters = AdapterLoader(engines, versions)

    async def pause(self, url: str) -> None:
        """Pause the engine; requests in flight are kept."""
        await self._engines.step(url, "/pause?mode=keep", timeout_s=STEP_S)

    async def resume(self, url: str) -> None:
        await self._engines.step(url, "/resume", timeout_s=STEP_S)

    async def drain(self, url: str) -> None:
        """Pause the engine when its requests are done, and abort those that take longer."""
        reply = await self._engines.request(url, "POST", "/pause?mode=wait", timeout_s=DRAIN_S)
        if reply.status == _TIMED_OUT and not reply.answered:
            await self.abort(url)
        elif not reply.ok:
            raise reply.failure("/pause")

    async def abort(self, url: str) -> None:
        await self._engines.step(url, "/pause?mode=abort", timeout_s=STEP_S)

    async def bring(self, url: str, source: Checkpoint, version: str) -> None:
        """Load the weights in a folder. The engine's version is unknown until the last step is done.

        Raises FilesChanged if the folder changed during the load, so the engine may have loaded different weights.
        """
        self._versions.hold(url, None)
        await self._name(url, CHANGING)
        await self._adapters.unload(url)
        if source.is_adapter:
            await self._adapters.load(url, source.folder, version)
        else:
            await self._load(url, source.folder)
        # reset_running_requests recomputes requests in flight with the new weights; otherwise their blocks stay cached.
        reset = await self._engines.step(url, "/reset_prefix_cache?reset_running_requests=true", timeout_s=STEP_S)
        if isinstance(reset, dict) and reset.get("success") is False:
            raise Failure(
                FailureKind.UPSTREAM_ERROR,
                f"{url} did not reset its prefix cache, which contains keys and values of the old weights",
            )
        if changed := await asyncio.to_thread(checkpoint.difference, source):
            raise self._lost(url, f"{changed}, while the engine was loading it")
        await self._name(url, version)
        self._versions.hold(url, version)

    async def _load(self, url: str, folder: str) -> None:
        self._versions.invalid.add(url)
        load = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        reply = await self._engines.request(url, "POST", "/collective_rpc", orjson.dumps(load))
        if not reply.ok:
            raise reply.failure("/collective_rpc")
        self._versions.invalid.discard(url)

    async def drop_adapter(self, url: str) -> None:
        """Return to the weights that an engine was started with, after an adapter could not be loaded."""
        await self._adapters.unload(url)
        await self._name(url, self._versions.now)
        self._versions.hold(url, self._versions.now)

    async def catch_up(self, url: str) -> None:
        """Load the policy's weights into a new engine, if they came from a folder.

        Raises FilesChanged if the files have changed; nothing is loaded, and the engine's weights then count as
        unknown.
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
        """Load the files of the policy's version. Raises FilesChanged if they have changed."""
        source = await self.source(url)
        await self._check_files(url, source)
        await self.bring(url, source, self._versions.now)

    async def check_start(self, url: str) -> None:
        """Raises FilesChanged if the engine's start folder has changed since the first engine was started."""
        await self.learn_start(url)
        known = self._versions.fingerprint(self._versions.first)
        if known and (root := await self._root(url)) == self._versions.root:
            folder = await asyncio.to_thread(self._locate, root)  # a link may have changed
            await self._check_files(url, Checkpoint(folder, known))

    async def _check_files(self, url: str, source: Checkpoint) -> None:
        if changed := await asyncio.to_thread(checkpoint.difference, source):
            detail = f"version {self._versions.now!r} cannot be loaded again: {changed}"
            advice = "save each version in its own folder, and POST /weights/update with one of them"
            raise self._lost(url, f"{detail}; {advice}, or restart the run")

    def _lost(self, url: str, detail: str) -> FilesChanged:
        self._versions.hold(url, None, detail)
        return FilesChanged(FailureKind.UPSTREAM_ERROR, detail)

    async def learn(self, url: str) -> None:
        """Record the version that the engine reports. A new engine is assigned the name of the first version, so that a
        restart can be detected.
        """
        reply, label = await self._weight_info(url)
        if label is None:
            if reply.status != 404:  # 404: an engine without weight versions
                log.warning("could not query the weight version: %s", reply.failure("/weight_info"))
            return
        version = self._versions.named(label)
        self._versions.hold(url, version)
        await self._adapters.learn(url)
        if version is None:
            self._versions.invalid.add(url)
        if label == STARTED:
            await self._name(url, self._versions.first)

    async def learn_start(self, url: str) -> None:
        """Record the files that the engine was started with, if they can be read; updates are compared with them."""
        if not self._versions.fingerprint(self._versions.first) and (root := await self._root(url)):
            await self.started_with(root)

    async def started_with(self, root: str) -> None:
        if start := await asyncio.to_thread(lambda: checkpoint.start_checkpoint(self._locate(root))):
            self._versions.started_with(root, start)

    async def runs_on_cpu(self, url: str) -> bool | None:
        """Return whether vLLM runs on a CPU: False if it does not report its device (/server_info requires the dev
        mode), None if it does not respond.
        """
        reply = await self._engines.request(url, "GET", "/server_info?config_format=json", timeout_s=QUERY_S)
        if not reply.answered:
            return None
        try:
            return bool(reply.ok and reply.value["vllm_config"]["device_config"]["device"] == "cpu")
        except (KeyError, TypeError):
            return False

    async def started_again(self, url: str) -> bool:
        """Return True if the engine was restarted, in which case its weights are valid but unknown.

        An engine that does not respond leaves the pool.
        """
        reply, label = await self._weight_info(url)
        if not reply.answered:
            self._engines.lose(url, str(reply.failure("/weight_info")))
        if label != STARTED:
            return False
        self._versions.hold(url, None, "it was restarted")
        self._versions.invalid.discard(url)
        return True

    async def is_new(self, url: str) -> bool:
        """Return True if the engine was restarted since its version was named; record its weights as unknown."""
        if (await self._weight_info(url))[1] != STARTED:
            return False
        self._versions.hold(url, None, "it was restarted")
        return True

    async def responds(self, url: str) -> bool:
        return (await self._weight_info(url))[0].answered

    async def back(self, url: str) -> bool:
        """Return True if a lost engine responds and can load weights; record its version."""
        reply, label = await self._weight_info(url)
        if not reply.answered:
            return False
        if label is not None:
            version = self._versions.named(label) if label != STARTED else None
            self._versions.hold(url, version)
            if label == STARTED:
                self._versions.invalid.discard(url)
            elif version is None:
                self._versions.invalid.add(url)
        return url not in self._versions.invalid

    async def put_back(self, url: str, version: str | None) -> None:
        """Restore the recorded version of an engine that rejected an update."""
        if version is not None:
            await self._name(url, version)
        self._versions.hold(url, version)
        self._versions.invalid.discard(url)

    async def source(self, url: str) -> Checkpoint:
        """Return the source of the policy's weights for that engine: a folder, or a name on the hub."""
        if self._versions.folder is None:
            raise Failure(FailureKind.UPSTREAM_ERROR, f"version {self._versions.now!r} was not loaded from a folder")
        known = self._versions.checkpoint
        if self._versions.folder:
            return known or Checkpoint(self._versions.folder)
        if root := await self._root(url):
            return known if known and root == self._versions.root else Checkpoint(root)
        detail = f"{url} does not report the weights that it was started with (`root` in /v1/models)"
        raise Failure(FailureKind.UPSTREAM_ERROR, detail)

    async def _root(self, url: str) -> str:
        reply = await self._engines.request(url, "GET", "/v1/models", timeout_s=QUERY_S)
        try:
            return str(reply.value["data"][0]["root"])
        except (KeyError, IndexError, TypeError):
            return ""

    async def release(self, url: str) -> None:
        """Resume an engine that is still paused, because the server that paused it has died."""
        reply = await self._engines.request(url, "GET", "/is_paused", timeout_s=QUERY_S)
        paused = reply.ok and isinstance(reply.value, dict) and reply.value.get("is_paused")
        if paused and self._versions.held(url) is not None:
            log.warning("%s was paused by an earlier run of this server or by another client; resuming it", url)
            await self.resume(url)

    async def _weight_info(self, url: str) -> tuple[EngineReply, Any]:
        """Return the engine's reply and the version label in it; None if there is none."""
        reply = await self._engines.request(url, "GET", "/weight_info", timeout_s=QUERY_S)
        return reply, reply.value.get("weight_version") if reply.ok and isinstance(reply.value, dict) else None

    async def _name(self, url: str, version: str) -> None:
        try:
            await self._engines.step(url, "/update_weight_version", {"new_version": version}, STEP_S)
        except Failure as failure:
            if failure.problem.upstream_status != 404:  # 404: an engine without weight versions
                raise


_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_ENABLE = (
    "vLLM loads adapters with --enable-lora, a sufficient --max-lora-rank, and "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
)


class AdapterLoader:
    """Loads the policy's LoRA adapters into one engine. All steps raise Failure if the engine reports an error."""

    def __init__(self, engines: EngineGroup, versions: PolicyVersions) -> None:
        self._engines = engines
        self._versions = versions
        self._adapted: set[str] = set()
        """Engines that have an adapter."""

    async def load(self, url: str, folder: str, version: str) -> None:
        """Load an adapter. If this fails, the engine keeps the weights below it, which are still valid."""
        load = {"lora_name": adapter_name(version), "lora_path": folder}
        reply = await self._engines.request(url, "POST", _LOAD, orjson.dumps(load))
        if not reply.ok:
            failure = reply.failure(_LOAD)
            if not reply.answered:
                raise failure
            raise Failure(FailureKind.UPSTREAM_ERROR, f"{failure.problem.detail} ({_ENABLE})")
        self._adapted.add(url)

    async def unload(self, url: str) -> None:
        """Unload all adapters of this server. An engine without adapters is not asked."""
        if url not in self._adapted:
            return
        for name in await self._loaded(url):
            await self._engines.step(url, _UNLOAD, {"lora_name": name}, STEP_S)
        self._adapted.discard(url)

    async def learn(self, url: str) -> None:
        """Record the adapters that an engine has loaded for an earlier run of this server."""
        with contextlib.suppress(Failure):
            for name, folder in (await self._loaded(url)).items():
                self._adapted.add(url)
                self._versions.learn_adapter(str(version_of(name)), Checkpoint(folder, is_adapter=True))

    async def _loaded(self, url: str) -> dict[str, str]:
        """Return the names and folders of the adapters that this server, or an earlier run of it, has loaded."""
        reply = await self._engines.request(url, "GET", "/v1/models", timeout_s=QUERY_S)
        if not reply.ok:
            raise reply.failure("/v1/models")
        listed = reply.value.get("data") if isinstance(reply.value, dict) else None
        models = {str(one.get("id")): str(one.get("root")) for one in listed or () if isinstance(one, dict)}
        return {name: root for name, root in models.items() if version_of(name) is not None}


TIED = (
    "tie_word_embeddings is true: on a CPU, vLLM keeps the old output head of such a model when its weights are "
    "reloaded; train a model with tie_word_embeddings=false, or serve it on a GPU"
)
SEED = "on a CPU, a weight update crashes vLLM while a request with a seed is running"


class CpuLimits:
    """Tracks which engines run on a CPU and rejects what they do not support.

    When the engine starts, the output head is packed for the matrix product. A reload repacks a separate head, but not
    a head that is tied to the embeddings, so vLLM would combine the new body with the old head and return 200. A
    request with a seed that is in flight during an update is recomputed in chunks, which crashes vLLM if its random
    numbers come from the CPU ("CPU Generator does not use offset").
    """

    def __init__(self, runs_on_cpu: Callable[[str], Awaitable[bool | None]]) -> None:
        self._runs_on_cpu = runs_on_cpu
        self._known: dict[str, bool] = {}

    async def learn(self, urls: Sequence[str]) -> None:
        """Query engines whose device is unknown; engines that do not respond are queried again next time."""
        new = [url for url in urls if url not in self._known]
        answers = await asyncio.gather(*(self._runs_on_cpu(url) for url in new))
        self._known.update({url: answer for url, answer in zip(new, answers, strict=True) if answer is not None})

    def on_cpu(self, urls: Sequence[str]) -> bool:
        return any(self._known.get(url) for url in urls)

    async def takes_seeds(self, urls: Sequence[str]) -> bool:
        """Return True if requests can have seeds, because no engine runs on a CPU."""
        await self.learn(urls)
        return not any(self._known.values())

    async def check_head(self, model: ModelSignature | None, urls: Sequence[str]) -> None:
        """Raises Failure bad_request for new weights if the model's output head is tied and an engine runs on a CPU."""
        if model is not None and model.is_tied:
            await self.learn(urls)
            if self.on_cpu(urls):
                raise bad_request(TIED)

    async def check_seed(self, body: Json, urls: Sequence[str]) -> None:
        """Raises Failure bad_request if the request has a seed and an engine runs on a CPU."""
        if (seed := _seed(body)) is not None and not await self.takes_seeds(urls):
            found = f"found seed {seed!r} in a request, but {SEED}"
            raise bad_request(
                f"{found}: remove the seed (sampling_overrides: {{seed: null}}), or set trainer_endpoints: false"
            )

    def check_settings(self, name: str, settings: Sequence[Mapping[str, Any] | None]) -> None:
        """Raises OperatorError if the settings add a seed to every request and an engine runs on a CPU."""
        for given in settings:
            if given and given.get("seed") is not None and any(self._known.values()):
                raise OperatorError(
                    f"{name}: found seed: {given['seed']!r} together with trainer_endpoints: true, but {SEED}; remove "
                    "one of the two"
                )


def _seed(body: Json) -> Any:
    params = body.get("sampling_params")
    inner = params.get("seed") if isinstance(params, dict) else None
    return inner if body.get("seed") is None else body["seed"]
