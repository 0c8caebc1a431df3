"""Server-sent events of ORS: a task id, then a result in pieces.

A client that lost its stream sends the task id again and gets the same result.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from rollyard.records.errors import Failure

PIECE = 4096
PING_S = 10.0
KEEP_S = 60.0
"""How long a result is kept for a client that comes back for it."""

log = logging.getLogger(__name__)


class RunningCalls:
    """The calls that are running, or whose result is still kept. A call is executed once, however often it is read."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._finished: dict[tuple[str, str], float] = {}

    def start(self, session_id: str, call: Callable[[], Awaitable[str]]) -> str:
        """Start a call and return its task id."""
        self._forget_old()
        key = (session_id, secrets.token_hex(16))

        async def run() -> str:
            try:
                return await call()
            finally:
                self._finished[key] = time.monotonic()

        self._tasks[key] = asyncio.create_task(run())
        return key[1]

    def find(self, session_id: str, task_id: str) -> asyncio.Task[str] | None:
        """Return a call of this session."""
        return self._tasks.get((session_id, task_id))

    async def close(self) -> None:
        """Cancel all calls."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _forget_old(self) -> None:
        old = [key for key, at in self._finished.items() if time.monotonic() - at > KEEP_S]
        for key in old:
            self._finished.pop(key)
            self._tasks.pop(key, None)


async def result_events(task_id: str, task: asyncio.Task[str]) -> AsyncIterator[bytes]:
    """Yield the events of one call: its id, pings while it runs, and its result or an error."""
    yield event("task_id", task_id)
    while not task.done():
        await asyncio.wait({task}, timeout=PING_S)
        if not task.done():
            yield b": ping\n\n"
    if task.cancelled():
        yield event("error", "the server is stopping")
    elif error := task.exception():
        yield event("error", _text_of(error))
    else:
        text = task.result()
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)] or [""]
        for piece in pieces[:-1]:
            yield event("chunk", piece)
        yield event("end", pieces[-1])


def event(name: str, data: str) -> bytes:
    """Return one event. `data` is JSON or an id, or is reduced to one line."""
    return f"event: {name}\ndata: {' '.join(data.splitlines()) if name == 'error' else data}\n\n".encode()


def _text_of(error: BaseException) -> str:
    if isinstance(error, Failure):
        return error.problem.detail
    log.error("a call of an ORS client failed", exc_info=error)
    return "internal error; the server's log has the details"
