"""Lifespan: enters an environment's `lifespan` when its server starts and leaves it when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from rollyard.services.errors import Failure, FailureKind, OperatorError, RollyardError, RunError

log = logging.getLogger(__name__)

CHECK_S = 60.0
"""How long the check of a config waits for a lifespan."""
LEAVE_S = 10.0
"""How long leaving may take; the server's process is ended soon after."""


class Lifespan:
    """One lifespan, in a task of its own.

    A server may be started in one task and stopped in another. Task groups, timeouts and anyio's cancel scopes must be
    left in the task that entered them.
    """

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._name = name
        self._make = make
        self._entered = asyncio.Event()
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._shared: Any = None

    async def enter(self) -> Any:
        """What the lifespan yields. Raises its RollyardError as it is, anything else as RunError."""
        try:
            return await self._begin()
        except RunError as error:
            if error.__cause__ is not None:  # the server's log gets the traceback, the terminal of a check does not
                log.error("%s", error, exc_info=error.__cause__)
            raise

    async def _begin(self) -> Any:
        self._task = asyncio.create_task(self._live())
        self._task.add_done_callback(self._ended)
        entering = asyncio.create_task(self._entered.wait())
        try:
            await asyncio.wait({self._task, entering}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            entering.cancel()
        if self._entered.is_set():
            return self._shared
        if self._task.cancelled():
            raise RunError(f"{self._name}.lifespan cancelled itself before its yield")
        error = self._task.exception()
        if isinstance(error, RollyardError):
            raise error
        raise RunError(f"{self._name}.lifespan failed: {type(error).__name__}: {error}") from error

    async def check(self) -> None:
        """Enter and leave it. Raises as `enter`.

        One that takes longer than CHECK_S passes, because a start has a deadline of its own; so does one that fails
        because no other server of the run is up yet.
        """
        try:
            async with asyncio.timeout(CHECK_S):
                await self._begin()
        except TimeoutError:
            log.info("%s.lifespan takes more than %g s and is not checked further", self._name, CHECK_S)
        except Failure as failure:
            if failure.kind not in (FailureKind.UNKNOWN_SERVER, FailureKind.UNREACHABLE):
                raise
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Run what follows the yield, within LEAVE_S. Logs what goes wrong there, and does not raise it."""
        if self._task is None:
            return
        self._leaving.set()
        if not self._entered.is_set():
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=LEAVE_S)
        if not self._task.done():
            log.error("%s.lifespan was not left within %g s and is given up", self._name, LEAVE_S)
            self._task.cancel()

    async def _live(self) -> None:
        lifespan = self._make()
        if not isinstance(lifespan, AbstractAsyncContextManager):
            raise OperatorError(
                f"{self._name}.lifespan returned {type(lifespan).__name__}, not an asynchronous context manager: "
                "decorate it with @classmethod and, below that, @asynccontextmanager"
            )
        async with lifespan as self._shared:
            self._entered.set()
            await self._leaving.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._entered.is_set():
            when = "when it was left" if self._leaving.is_set() else "while the server was running"
            log.error("%s.lifespan failed %s", self._name, when, exc_info=error)
