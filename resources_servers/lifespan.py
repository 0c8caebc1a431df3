"""Enters an environment's `lifespan` when its server starts and exits it when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from rollyard.records.errors import Failure, FailureKind, OperatorError, RollyardError, RunError

log = logging.getLogger(__name__)

CHECK_S = 60.0
"""How long a config check waits until the lifespan has been entered."""
LEAVE_S = 10.0
"""Timeout for exiting the lifespan. The server process is killed soon afterwards."""


class Lifespan:
    """Runs one lifespan in its own task.

    A server may be started in one task and stopped in another, but task groups, timeouts and anyio's cancel scopes
    must be exited in the task that entered them.
    """

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._name = name
        self._make = make
        self._entered = asyncio.Event()
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._shared: Any = None

    async def enter(self) -> Any:
        """Enter the lifespan and return the value that it yields.

        A RollyardError from the lifespan is raised unchanged, any other exception as RunError.
        """
        try:
            return await self._enter()
        except RunError as error:
            if error.__cause__ is not None:  # the traceback belongs in the server's log, not in the terminal of a check
                log.error("%s", error, exc_info=error.__cause__)
            raise

    async def _enter(self) -> Any:
        self._task = asyncio.create_task(self._run())
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
        """Enter and exit the lifespan. Raises the same errors as `enter`.

        The check also passes if entering takes longer than CHECK_S, because the real start has its own deadline, or if
        entering fails because the run's other servers are not up yet.
        """
        try:
            async with asyncio.timeout(CHECK_S):
                await self._enter()
        except TimeoutError:
            log.info(
                "%s.lifespan takes longer than %g s to enter; the check does not wait any longer", self._name, CHECK_S
            )
        except Failure as failure:
            if failure.kind not in (FailureKind.UNKNOWN_SERVER, FailureKind.UNREACHABLE):
                raise
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Exit the lifespan within LEAVE_S seconds. Errors are logged, not raised."""
        if self._task is None:
            return
        self._leaving.set()
        if not self._entered.is_set():
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=LEAVE_S)
        if not self._task.done():
            log.error("%s.lifespan did not exit within %g s and is abandoned", self._name, LEAVE_S)
            self._task.cancel()

    async def _run(self) -> None:
        lifespan = self._make()
        if not isinstance(lifespan, AbstractAsyncContextManager):
            raise OperatorError(
                f"{self._name}.lifespan returned {type(lifespan).__name__}, not an asynchronous context manager: "
                "decorate it with @classmethod and, below that, @asynccontextmanager"
            )
        try:
            async with lifespan as self._shared:
                self._entered.set()
                await self._leaving.wait()
        except SystemExit as error:  # in a task it would end the event loop, without a message
            raise RunError(f"{self._name}.lifespan called sys.exit({error.code!r})") from error

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._entered.is_set():
            when = "while exiting" if self._leaving.is_set() else "while the server was running"
            log.error("%s.lifespan failed %s", self._name, when, exc_info=error)
