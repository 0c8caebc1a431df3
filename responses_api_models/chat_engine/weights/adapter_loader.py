"""Loads the policy's LoRA adapters into engines (adapters.py)."""

from __future__ import annotations

import contextlib

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.responses_api_models.chat_engine.weights.adapters import ENABLE, LOAD, UNLOAD, adapter_name, version_of
from rollyard.responses_api_models.chat_engine.weights.checkpoint import Checkpoint
from rollyard.responses_api_models.chat_engine.weights.engine_group import QUERY_S, STEP_S, EngineGroup
from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions


class AdapterLoader:
    """The steps on one engine. All of them raise Failure if the engine reports an error."""

    def __init__(self, engines: EngineGroup, versions: PolicyVersions) -> None:
        self._engines = engines
        self._versions = versions
        self._adapted: set[str] = set()
        """Engines that have an adapter."""

    async def load(self, url: str, folder: str, version: str) -> None:
        """Load an adapter. If this fails, the engine keeps the weights below it, which are still valid."""
        load = {"lora_name": adapter_name(version), "lora_path": folder}
        reply = await self._engines.request(url, "POST", LOAD, orjson.dumps(load))
        if not reply.ok:
            failure = reply.failure(LOAD)
            if not reply.answered:
                raise failure
            raise Failure(FailureKind.UPSTREAM_ERROR, f"{failure.problem.detail} ({ENABLE})")
        self._adapted.add(url)

    async def unload(self, url: str) -> None:
        """Unload all adapters of this server. An engine without adapters is not asked."""
        if url not in self._adapted:
            return
        for name in await self._loaded(url):
            await self._engines.step(url, UNLOAD, {"lora_name": name}, STEP_S)
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
