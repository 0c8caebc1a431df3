"""Syncs the weights of engines that differ from the policy because they, or this server, were restarted.

While an engine in the pool differs, the gate stays shut until it has loaded the policy's weights; all waiting calls
share one resync. Lost engines rejoin the pool once they have the policy's weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from rollyard.records.errors import Failure
from rollyard.responses_api_models.chat_engine.weights.call_gate import ASLEEP, PAUSED, RESYNCING, Gate
from rollyard.responses_api_models.chat_engine.weights.engine_group import EngineGroup
from rollyard.responses_api_models.chat_engine.weights.job_queue import JobQueue
from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions
from rollyard.responses_api_models.chat_engine.weights.weight_loader import FilesChanged, WeightLoader

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0
"""Interval between checks of the engines."""


class JoiningEngines:
    """Registers, resyncs and watches the engines of one policy."""

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
