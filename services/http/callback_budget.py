"""Turnstile: so many callbacks in one turn of the event loop, the rest in the next ones.

An event loop runs everything that is ready before it looks at its sockets again. With thousands of rollouts in flight
that is seconds of work in one turn, in which nothing else is read, answered or timed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

A_TURN = 16
"""Some 5 ms of work; a tenth of a second on a machine that others load."""


class CallbackBudget:
    """First come, first served."""

    def __init__(self, a_turn: int = A_TURN) -> None:
        self._a_turn = a_turn
        self._passed = 0
        self._turning = False
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def enter(self, go: Callable[..., object], *arguments: Any) -> None:
        """Call `go` now, or in a later turn of the loop where this one has had its share."""
        if self._passed >= self._a_turn or self._waiting:
            self._waiting.append((go, arguments))
            return
        self._passed += 1
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        go(*arguments)

    def _turn(self) -> None:
        self._passed = min(len(self._waiting), self._a_turn)
        self._turning = self._passed > 0
        if not self._turning:
            return
        asyncio.get_running_loop().call_soon(self._turn)
        for _ in range(self._passed):
            go, arguments = self._waiting.popleft()
            go(*arguments)
