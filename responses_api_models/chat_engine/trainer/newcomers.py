"""Newcomers: engines that hold other weights than the policy's because they, or this server, were just started."""

from __future__ import annotations

import logging
import time

from responses_api_models.chat_engine.trainer.engines import Engines
from responses_api_models.chat_engine.trainer.jobs import Jobs
from responses_api_models.chat_engine.trainer.loader import Loader
from responses_api_models.chat_engine.trainer.versions import Versions

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Pause between two looks at engines that are lost."""


class Newcomers:
    """What is done with them."""

    def __init__(self, engines: Engines, loader: Loader, versions: Versions, jobs: Jobs) -> None:
        self._engines = engines
        self._loader = loader
        self._versions = versions
        self._jobs = jobs
        self._next_look = 0.0

    async def learn(self) -> None:
        """Ask engines that were there before this server what they hold: it may have been restarted."""
        urls = self._engines.urls
        await self._engines.all(urls, self._loader.learn)
        await self._engines.all(urls, self._loader.release)
        held = {self._versions.held(url) for url in urls}
        if len(held) == 1 and (only := held.pop()) is not None and only != self._versions.now:
            log.warning("the engines hold version %r from an earlier run of this server: it goes on from there", only)
            self._versions.advance(only, None)
        elif difference := self._versions.difference(urls):
            log.error("%s: model calls are refused", difference)

    async def adopt(self, url: str) -> None:
        """Add an engine that has just been started to the pool, once it holds the policy's weights.

        Raises Failure when it does not take them; it is not in the pool then. Where the weights came from a trainer and
        not from a folder, it is added as it is and the gate stays shut until the trainer has sent them again.
        """
        await self._jobs.run(self._adopt(url))

    async def mend(self) -> None:
        """Bring engines that were started again since they were lost to the policy's weights."""
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + LOOK_S
            await self._jobs.run(self._mend())

    async def _adopt(self, url: str) -> None:
        await self._loader.catch_up(url)
        self._engines.add(url)
        if difference := self._versions.difference([url]):
            log.error("%s: model calls are refused until the trainer has sent its weights again", difference)

    async def _mend(self) -> None:
        for url in self._engines.urls:
            if self._versions.difference([url]) and await self._loader.started_again(url):
                log.warning("%s was started again: it is brought to version %r", url, self._versions.now)
                for failure in await self._engines.all([url], self._catch_up):
                    log.error("%s", failure)

    async def _catch_up(self, url: str) -> None:
        await self._loader.pause(url)  # a call that is tried again may have reached it
        try:
            await self._loader.catch_up(url)
        finally:
            await self._loader.resume(url)
