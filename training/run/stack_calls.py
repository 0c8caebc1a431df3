"""StackCalls: the trainer's thread calls coroutines that run in the event loop of another thread."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal

T = TypeVar("T")

_UNWIND_S = 30.0
"""How long a cancelled call may take to close its files and connections."""


class Interrupted(Exception):
    """The call was cancelled, because the user wants training to end."""


class StackCalls:
    """Calls one coroutine at a time. `stop` cancels the current call and all later ones."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._current: concurrent.futures.Future[Any] | None = None
        self.stopped = False
        """True once `stop` was called."""

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Return the coroutine's result. Raises Interrupted if `stop` is or was called, after the coroutine has ended.

        What the coroutine raises is passed on.
        """
        if self.stopped:
            raise Interrupted
        ended = threading.Event()

        async def run() -> T:
            try:
                return await function(*arguments)
            finally:
                ended.set()

        self._current = future = self._portal.start_task_soon(run)
        try:
            if self.stopped:  # between the first check and the assignment
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            ended.wait(_UNWIND_S)
            raise Interrupted from None
        finally:
            self._current = None

    def clean_up(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call a coroutine function even after `stop`."""
        self._portal.call(function)

    def stop(self) -> None:
        """Cancel the current call. May be called by a signal handler."""
        self.stopped = True
        if self._current is not None:
            self._current.cancel()
