"""Loads new weights from a folder into every engine, or restores the old weights on every engine.

An update pauses all engines (requests in flight are kept), loads the weights on all of them, and resumes them only when
all have finished, so no two engines ever sample with different weights. If one fails, the others restore the previous
weights. The weights of the failed engine are invalid: its requests are aborted, and the gate stays shut until it is
restarted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.weights import checkpoint
from rollyard.responses_api_models.chat_engine.weights.call_gate import ASLEEP, PAUSED, UPDATING, Gate
from rollyard.responses_api_models.chat_engine.weights.checkpoint import Checkpoint, Depth
from rollyard.responses_api_models.chat_engine.weights.cpu_limits import CpuLimits
from rollyard.responses_api_models.chat_engine.weights.engine_group import EngineGroup, EngineUnreachable
from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions, next_version
from rollyard.responses_api_models.chat_engine.weights.rejections import conflict
from rollyard.responses_api_models.chat_engine.weights.weight_loader import WeightLoader

log = logging.getLogger(__name__)


class WeightUpdates:
    """Weight updates of one policy on all its engines."""

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

    async def update(self, folder: str, version: str | None, *, adapter: bool = False) -> Json:
        """Update the weights, or their adapter, and return the response.

        Raises Failure with the reason and the engines' versions.
        """
        started_at, previous, urls = time.monotonic(), self._versions.now, self._engines.urls
        if not urls:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        await self._check_invalid(urls)
        started = self._versions.model
        if adapter:
            self._check_base()
        check = checkpoint.check_adapter if adapter else checkpoint.check
        found = await asyncio.to_thread(check, folder, started, self._depth)
        if not adapter:
            await self._cpu.check_head(started or found.signature, urls)
        version = version or next_version(previous, found.folder)
        self._versions.check_name(version, found.fingerprint)
        with self._gate.shut_while(UPDATING):
            await self._change(urls, found, version)
        seconds = round(time.monotonic() - started_at, 3)
        log.info("updated the policy from version %r to %r in %.1f s: %s", previous, version, seconds, found.folder)
        remaining = [url for url in urls if url in self._engines.urls]
        answer = {"version": version, "previous": previous, "seconds": seconds, "engines": len(remaining)}
        files = {"path": found.folder, "fingerprint": found.fingerprint} if found.fingerprint else {}
        lost = {"lost": [url for url in urls if url in self._engines.lost]} if len(remaining) < len(urls) else {}
        return {**answer, **files, **lost, "warnings": list(found.warnings)}

    def _check_base(self) -> None:
        if self._versions.folder == "" or self._versions.has_adapter:
            return
        raise conflict(
            f"version {self._versions.now!r} replaced the weights that the engines were started with, to which "
            "adapters are added: restart the engines, or publish merged weights"
        )

    async def _check_invalid(self, urls: Sequence[str]) -> None:
        invalid = [url for url in urls if url in self._versions.invalid]
        remaining = [url for url in invalid if not await self._loader.started_again(url) and url in self._engines.urls]
        if remaining:
            summary = f"{', '.join(remaining)}: the weights were lost in an update that failed or is not finished"
            summary += ", and vLLM cannot load new weights after that"
            raise Failure(FailureKind.UPSTREAM_ERROR, f"{summary}; restart the engine, then repeat the update")

    async def _change(self, urls: Sequence[str], found: Checkpoint, version: str) -> None:
        unchanged = f"nothing was changed; the policy stays at version {self._versions.now!r}"
        # If a trainer paused the engines, the trainer resumes them.
        should_pause = not self._gate.waits_for(PAUSED) and not self._gate.waits_for(ASLEEP)
        # An engine that replaces an adapter must have no requests in flight, which would keep the old one.
        adapted = found.is_adapter or self._versions.has_adapter
        stop = (self._loader.drain if should_pause else self._loader.abort) if adapted else self._loader.pause
        try:
            if (should_pause or adapted) and (failed := await self._engines.all(urls, stop)):
                raise _failed(unchanged, failed.values())
            if changed := await asyncio.to_thread(checkpoint.difference, found):
                raise conflict(f"{unchanged}: {changed}")
            await self._load(self._in_pool(urls), found, version)
        except BaseException:
            if should_pause:
                await self._resume(urls)
            raise
        if should_pause and (stuck := await self._resume(urls)):
            raise _failed(
                f"version {version!r} was loaded, but an engine did not resume (retry with POST /resume)", [stuck]
            )

    async def _load(self, urls: Sequence[str], found: Checkpoint, version: str) -> None:
        failed = await self._engines.all(urls, lambda url: self._loader.bring(url, found, version))
        self._end_invalid(url for url in urls if url in self._engines.lost)
        if failed or version not in map(self._versions.held, self._in_pool(urls)):
            await self._roll_back(self._in_pool(urls), found, version, failed)
        # Before the engines resume, so that requests in flight end under the new version.
        self._versions.advance(version, found.folder, found)

    def _in_pool(self, urls: Sequence[str]) -> list[str]:
        return [url for url in urls if url in self._engines.urls]

    def _end_invalid(self, urls: Iterable[str]) -> None:
        for url in urls:
            if url in self._versions.invalid:
                self._on_invalid(url)

    async def _resume(self, urls: Sequence[str]) -> Failure | None:
        """Resume the engines. An engine that fails leaves the pool; if it is the only one, model calls wait for it."""
        for url, failure in (await self._engines.all(self._in_pool(urls), self._loader.resume)).items():
            if isinstance(failure, EngineUnreachable):
                self._engines.unresumed.add(url)
            elif self._engines.lose(url, str(failure)):
                continue
            else:
                self._gate.shut(PAUSED)
            return failure
        return None

    async def _roll_back(
        self, urls: Sequence[str], found: Checkpoint, version: str, failures: Mapping[str, Failure]
    ) -> None:
        """Restore the previous weights on all engines that can load them. Always raises Failure."""
        previous = self._versions.now

        async def restore(url: str) -> None:
            if url in self._versions.invalid:
                return
            if found.is_adapter and not self._versions.has_adapter:
                await self._loader.drop_adapter(url)
            else:
                await self._loader.restore(url)

        failed = [*failures.values(), *(await self._engines.all(urls, restore)).values()]
        remaining = self._in_pool(urls)
        summary = f"the update to {version!r} failed"
        if not (difference := self._versions.difference(remaining)):
            raise _failed(f"{summary} and was rolled back; the policy stays at version {previous!r}", failed)
        invalid = [url for url in remaining if url in self._versions.invalid]
        # A request that runs on invalid weights crashes vLLM, so those in flight are aborted.
        await self._engines.all(invalid, self._loader.abort)
        self._end_invalid(invalid)
        again = f"; {', '.join(invalid)} must be restarted" if invalid else ""
        raise _failed(f"{summary}: {difference}{again}", failed)


def _failed(summary: str, failures: Iterable[Failure]) -> Failure:
    reasons = "; ".join(dict.fromkeys(failure.problem.detail for failure in failures))
    return Failure(FailureKind.UPSTREAM_ERROR, f"{summary}: {reasons or 'no engine is left'}")
