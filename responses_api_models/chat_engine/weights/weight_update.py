"""Weights: new ones from a folder on every engine, or the old ones on every engine.

An update pauses all engines (requests in flight are kept), loads on all, and lets them go on only when all have loaded,
so that at no time two engines sample with different weights. Where one fails, the others go back to the weights before.
The one whose load failed is spoilt: its requests are ended, and the gate stays shut until it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from rollyard.responses_api_models.chat_engine.weights import checkpoint
from rollyard.responses_api_models.chat_engine.weights.call_gate import ASLEEP, PAUSED, UPDATING, Gate
from rollyard.responses_api_models.chat_engine.weights.checkpoint import Checkpoint, Depth
from rollyard.responses_api_models.chat_engine.weights.cpu_limits import CpuLimits
from rollyard.responses_api_models.chat_engine.weights.engine_group import EngineGroup, EngineUnreachable
from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions, next_version
from rollyard.responses_api_models.chat_engine.weights.rejections import conflict
from rollyard.responses_api_models.chat_engine.weights.weight_loader import WeightLoader
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.types import Json

log = logging.getLogger(__name__)


class WeightUpdates:
    """Those of one policy, on all its engines."""

    def __init__(
        self,
        engines: EngineGroup,
        loader: WeightLoader,
        versions: PolicyVersions,
        gate: Gate,
        cpu: CpuLimits,
        on_invalid: Callable[[str], None],
        depth: Depth,
    ) -> None:
        self._engines = engines
        self._loader = loader
        self._versions = versions
        self._gate = gate
        self._cpu = cpu
        self._on_invalid = on_invalid
        self._depth = depth

    async def update(self, folder: str, version: str | None) -> Json:
        """The answer to an update. Raises Failure: why, and what the engines hold now."""
        began, previous, urls = time.monotonic(), self._versions.now, self._engines.urls
        if not urls:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        await self._check_invalid(urls)
        started = self._versions.model
        found = await asyncio.to_thread(checkpoint.check, folder, started, self._depth)
        await self._cpu.check_head(started or found.profile, urls)
        version = version or next_version(previous, found.folder)
        self._versions.check_name(version, found.fingerprint)
        with self._gate.shut_while(UPDATING):
            await self._change(urls, found, version)
        seconds = round(time.monotonic() - began, 3)
        log.info("the policy is version %r (before: %r) after %.1f s: %s", version, previous, seconds, found.folder)
        left = [url for url in urls if url in self._engines.urls]
        answer = {"version": version, "previous": previous, "seconds": seconds, "engines": len(left)}
        files = {"path": found.folder, "fingerprint": found.fingerprint} if found.fingerprint else {}
        lost = {"lost": [url for url in urls if url in self._engines.lost]} if len(left) < len(urls) else {}
        return {**answer, **files, **lost, "warnings": list(found.warnings)}

    async def _check_invalid(self, urls: Sequence[str]) -> None:
        invalid = [url for url in urls if url in self._versions.invalid]
        left = [url for url in invalid if not await self._loader.started_again(url) and url in self._engines.urls]
        if left:
            told = f"{', '.join(left)} lost the weights in an update that failed or is not finished"
            told += ", and vLLM cannot load others then"
            raise Failure(FailureKind.UPSTREAM_ERROR, f"{told}: start it again, then update")

    async def _change(self, urls: Sequence[str], found: Checkpoint, version: str) -> None:
        # Who has stopped them lets them go on.
        ours = not self._gate.waits_for(PAUSED) and not self._gate.waits_for(ASLEEP)
        try:
            if ours and (failed := await self._engines.all(urls, self._loader.pause)):
                raise _failed(f"nothing was changed, the policy stays version {self._versions.now!r}", failed.values())
            if changed := await asyncio.to_thread(checkpoint.difference, found):
                raise conflict(f"nothing was changed, the policy stays version {self._versions.now!r}: {changed}")
            await self._load(self._here(urls), found, version)
        except BaseException:
            if ours:
                await self._resume(urls)
            raise
        if ours and (stuck := await self._resume(urls)):
            raise _failed(f"the policy is version {version!r}, but its engine does not go on (POST /resume)", [stuck])

    async def _load(self, urls: Sequence[str], found: Checkpoint, version: str) -> None:
        failed = await self._engines.all(urls, lambda url: self._loader.bring(url, found, version))
        self._end_invalid(url for url in urls if url in self._engines.lost)
        if failed or version not in map(self._versions.held, self._here(urls)):
            await self._take_back(self._here(urls), version, failed)
        # Before they go on: what is in flight then ends under the new version.
        self._versions.advance(version, found.folder, found)

    def _here(self, urls: Sequence[str]) -> list[str]:
        return [url for url in urls if url in self._engines.urls]

    def _end_invalid(self, urls: Iterable[str]) -> None:
        for url in urls:
            if url in self._versions.invalid:
                self._on_invalid(url)

    async def _resume(self, urls: Sequence[str]) -> Failure | None:
        """Let them go on. One that refuses is out of the pool; where it is the only one, model calls wait for it."""
        for url, failure in (await self._engines.all(self._here(urls), self._loader.resume)).items():
            if isinstance(failure, EngineUnreachable):
                self._engines.unresumed.add(url)
            elif self._engines.lose(url, str(failure)):
                continue
            else:
                self._gate.shut(PAUSED)
            return failure
        return None

    async def _take_back(self, urls: Sequence[str], version: str, failures: Mapping[str, Failure]) -> None:
        """All engines that can to the weights before. Raises Failure, always."""
        previous = self._versions.now

        async def restore(url: str) -> None:
            if url not in self._versions.invalid:
                await self._loader.restore(url)

        failed = [*failures.values(), *(await self._engines.all(urls, restore)).values()]
        left = self._here(urls)
        told = f"the update to {version!r} failed"
        if not (difference := self._versions.difference(left)):
            raise _failed(f"{told} and was taken back, the policy stays version {previous!r}", failed)
        invalid = [url for url in left if url in self._versions.invalid]
        # A request that runs on weights which are not there ends vLLM's process: those in flight end here.
        await self._engines.all(invalid, self._loader.abort)
        self._end_invalid(invalid)
        again = f"; {', '.join(invalid)} must be started again" if invalid else ""
        raise _failed(f"{told}: {difference}{again}", failed)


def _failed(told: str, failures: Iterable[Failure]) -> Failure:
    reasons = "; ".join(dict.fromkeys(failure.problem.detail for failure in failures))
    return Failure(FailureKind.UPSTREAM_ERROR, f"{told}: {reasons or 'no engine is left'}")
