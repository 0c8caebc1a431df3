"""Keeps every engine at the policy's weights: loads new ones from a folder, or restores the old ones (`WeightUpdates`),
and syncs engines that were restarted (`JoiningEngines`).

An update pauses all engines (requests in flight are kept), loads the weights on all of them, and resumes them only when
all have finished, so no two engines ever sample with different weights. If one fails, the others restore the previous
weights. The weights of the failed engine are invalid: its requests are aborted, and the gate stays shut until it is
restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine import checkpoint
from rollyard.responses_api_models.chat_engine.checkpoint import Checkpoint, Depth, conflict
from rollyard.responses_api_models.chat_engine.engine_group import EngineGroup, EngineUnreachable, JobQueue
from rollyard.responses_api_models.chat_engine.policy_versions import (
    ASLEEP,
    PAUSED,
    RESYNCING,
    UPDATING,
    Gate,
    PolicyVersions,
    next_version,
)
from rollyard.responses_api_models.chat_engine.weight_loader import CpuLimits, FilesChanged, WeightLoader

log = logging.getLogger(__name__)


@dataclass(eq=False)
class WeightUpdates:
    _engines: EngineGroup
    _loader: WeightLoader
    _versions: PolicyVersions
    _gate: Gate
    _cpu: CpuLimits
    _on_invalid: Callable[[str], None]
    _depth: Depth

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


CHECK_INTERVAL_S = 5.0
"""Interval between checks of the engines."""


class JoiningEngines:
    """Registers, resyncs and watches the engines of one policy.

    While an engine in the pool differs, the gate stays shut until it has loaded the policy's weights; all waiting calls
    share one resync. Lost engines rejoin the pool once they have the policy's weights.
    """

    def __init__(
        self, engines: EngineGroup, loader: WeightLoader, versions: PolicyVersions, gate: Gate, jobs: JobQueue
    ) -> None:
        self._engines = engines
        self._loader = loader
        self._versions = versions
        self._gate = gate
        self._jobs = jobs
        self._resyncing: asyncio.Task[None] | None = None
        self._next_check = 0.0
        self._waiting: dict[str, int] = {}
        """Engines that could not load the policy's files and wait for a new version -> `PolicyVersions.mark` at that
        time."""

    async def learn(self) -> None:
        """Ask running engines which weights they have, because this server may have been restarted."""
        urls = self._engines.urls
        await self._engines.all(urls, self._loader.learn)
        await self._engines.all(urls, self._loader.release)
        await self._engines.all(urls, self._loader.learn_start)
        held = {self._versions.held(url) for url in urls}
        if len(held) == 1 and (only := held.pop()) is not None and only != self._versions.now:
            log.warning("the engines have version %r from an earlier run of this server; continuing with it", only)
            self._versions.advance(only, self._versions.adapter_folder(only))
        elif difference := self._versions.difference(urls):
            log.error("%s: model calls are rejected", difference)

    async def register_engine(self, url: str) -> None:
        """Add a newly started engine to the pool once it has the policy's weights.

        Raises Failure, without adding the engine, if it fails to load them. If the weights came from a trainer and not
        from a folder, the engine is added as it is, and the gate stays shut until the trainer sends them again. If the
        files in the folder have changed, the engine waits outside the pool for the next update; if it is the only one,
        it is added, and model calls are rejected with the reason.
        """
        await self._jobs.run(self._register_engine(url))

    async def register_with_start_weights(self, url: str) -> None:
        """Add an engine to the pool of a server without trainer endpoints. It is excluded if its files have changed
        since the start of the first engine, unless it is the only one.
        """
        try:
            await self._loader.check_start(url)
        except FilesChanged as changed:
            self._engines.add(url)
            self._exclude(url, changed)
        else:
            self._engines.add(url)

    async def resync(self) -> None:
        """Load the policy's weights into engines in the pool that were restarted."""
        if self._resyncing is None or self._resyncing.done():
            if time.monotonic() < self._next_check:
                return
            self._resyncing = asyncio.create_task(self._resync_waiting())
        await asyncio.shield(self._resyncing)

    async def watch(self) -> None:
        """Run until cancelled: return lost engines to the pool once they respond and have the policy's weights, resume
        engines that did not respond to an earlier resume call, and detect engines that were restarted at the same URL.
        """
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for url in list(self._engines.urls):
                if self._stopped or self._waits(url) or url in self._versions.invalid:
                    continue
                if await self._loader.is_new(url):
                    with contextlib.suppress(Failure):
                        await self._jobs.run(self._resync())
            # Queried outside the queue, because an engine that does not respond must not delay a trainer.
            for url in list(self._engines.lost):
                if not self._stopped and not self._waits(url) and await self._loader.responds(url):
                    with contextlib.suppress(Failure):  # JobQueue logs it
                        await self._jobs.run(self._rejoin(url))
            for url in list(self._engines.unresumed):
                if await self._loader.responds(url):
                    with contextlib.suppress(Failure):
                        await self._jobs.run(self._release(url))

    async def join(self) -> None:
        """Return lost engines to the pool if they respond again, without loading weights, because a trainer is about to
        send new ones.
        """
        for url in list(self._engines.lost):
            if await self._loader.back(url):
                self._engines.add(url)

    @property
    def _stopped(self) -> bool:
        return self._gate.waits_for(PAUSED) or self._gate.waits_for(ASLEEP)

    async def _register_engine(self, url: str) -> None:
        try:
            await self._loader.catch_up(url)
        except FilesChanged as changed:
            self._engines.add(url)
            self._exclude(url, changed)
            return
        self._engines.add(url)
        if difference := self._versions.difference([url]):
            log.error("%s: model calls are rejected until the trainer sends its weights again", difference)

    async def _resync_waiting(self) -> None:
        try:
            await self._jobs.run(self._resync())
        except Failure as failure:  # waiting calls check the difference themselves
            log.error("%s", failure)
        finally:
            self._next_check = time.monotonic() + CHECK_INTERVAL_S

    async def _resync(self) -> None:
        for url in self._engines.urls:
            if self._versions.difference([url]) and not self._waits(url) and await self._loader.started_again(url):
                log.warning("%s was restarted; loading version %r", url, self._versions.now)
                with self._gate.shut_while(RESYNCING):
                    for failure in (await self._engines.all([url], self._catch_up)).values():
                        log.error("%s", failure)
                        if isinstance(failure, FilesChanged):
                            self._exclude(url, failure)

    async def _release(self, url: str) -> None:
        if url in self._engines.unresumed and not self._stopped:
            await self._loader.release(url)
            self._engines.unresumed.discard(url)

    async def _rejoin(self, url: str) -> None:
        if self._stopped or url not in self._engines.lost or not await self._loader.back(url):
            return
        if self._versions.held(url) != self._versions.now:
            if self._versions.folder is None:
                log.warning("%s responds again, but only the trainer can send it version %r", url, self._versions.now)
                return
            try:
                await self._catch_up(url)
            except FilesChanged:
                self._waiting[url] = self._versions.mark
                raise
        else:
            await self._loader.release(url)
        if self._versions.held(url) == self._versions.now:
            log.warning("%s is back in the pool with version %r", url, self._versions.now)
            self._engines.add(url)

    def _waits(self, url: str) -> bool:
        return self._waiting.get(url) == self._versions.mark

    def _exclude(self, url: str, changed: FilesChanged) -> None:
        self._waiting[url] = self._versions.mark
        if not self._engines.lose(url, str(changed)):
            log.error("model calls are rejected: %s", changed)

    async def _catch_up(self, url: str) -> None:
        await self._loader.pause(url)  # a retried model call may have reached it
        try:
            await self._loader.catch_up(url)
        finally:
            await self._loader.resume(url)
