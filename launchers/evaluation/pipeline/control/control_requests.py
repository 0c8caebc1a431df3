"""ControlRequests: a user's requests to a running evaluation, by signal or through its control server."""

from __future__ import annotations

import asyncio


class ControlRequests:
    """Requests to pause, resume or end an evaluation. The evaluation waits for changes and acts on them."""

    def __init__(self) -> None:
        self.paused = False
        self.ending = ""
        """Why the evaluation should end: `interrupted` or `stopped`; empty if it should continue."""
        self.now = False
        """End without waiting for episodes in flight."""
        self._changed = asyncio.Event()

    def pause(self) -> None:
        self.paused = True
        self._changed.set()

    def resume(self) -> None:
        self.paused = False
        self._changed.set()

    def interrupt(self) -> None:
        """End the evaluation after the episodes in flight; a second call ends it at once."""
        self.now = bool(self.ending)
        self.ending = self.ending or "interrupted"
        self._changed.set()

    def stop(self) -> None:
        """End the evaluation after the episodes in flight."""
        self.ending = self.ending or "stopped"
        self._changed.set()

    async def changed(self) -> None:
        """Wait for the next request."""
        await self._changed.wait()
        self._changed.clear()

    async def pause_for(self, seconds: float) -> None:
        """Wait for `seconds`, or until the evaluation should end."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.ending and (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.wait_for(self.changed(), left)
            except TimeoutError:
                return
