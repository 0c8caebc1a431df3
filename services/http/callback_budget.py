"""CallbackBudget: limits how many callbacks run per iteration of the event loop.

An event loop runs every ready callback before it polls its sockets again. With thousands of rollouts in flight, one
iteration can take seconds, during which no socket is read and no timer fires.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

PER_ITERATION = 16
"""Callbacks per iteration: about 5 ms of work, or 0.1 s on a busy host."""


class CallbackBudget:
    """Runs callbacks in FIFO order, at most `per_iteration` of them in each iteration of the event loop."""

    def __init__(self, per_iteration: int = PER_ITERATION) -> None:
        self._per_iteration = per_iteration
        self._used = 0
        self._scheduled = False
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def run(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call `callback` now, or in a later iteration of the loop if this one has used up its budget."""
        if self._used >= self._per_iteration or self._waiting:
            self._waiting.append((callback, arguments))
            return
        self._used += 1
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_iteration)
        callback(*arguments)

    def _next_iteration(self) -> None:
        self._used = min(len(self._waiting), self._per_iteration)
        self._scheduled = self._used > 0
        if not self._scheduled:
            return
        asyncio.get_running_loop().call_soon(self._next_iteration)
        for _ in range(self._used):
            callback, arguments = self._waiting.popleft()
            callback(*arguments)
