"""Fault: one way in which the machine, a file or a peer goes wrong, how it is made to, and what may not come of it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.chaos.fault_context import FaultContext

Play = Callable[[FaultContext, random.Random], Awaitable[None]]
"""Inject the fault and look. Raises Broken when it broke through, NotInjected when it did not take effect."""


@dataclass(frozen=True)
class Fault:
    """A line of the table."""

    name: str
    section: int
    """Of the issue: 2 files, 3 faults and overload, 4 HTTP."""
    before: str
    """What it did at commit de07a2d."""
    now: str
    """What happens instead."""
    play: Play
    slow: bool = False
    """Left out of the short form."""
    alone: bool = False
    """Not beside other faults: it loads or stops the machine's processes."""
    root: bool = False
    """Only root can inject it."""
