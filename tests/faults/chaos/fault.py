"""Fault: something that can go wrong with the host, a file or a peer, how to inject it, and what must still hold."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.chaos.fault_context import FaultContext

Play = Callable[[FaultContext, random.Random], Awaitable[None]]
"""Inject the fault and check. Raises Broken if a check failed, NotInjected if the fault did not take effect."""


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    section: int
    """2: files, 3: faults and overload, 4: HTTP."""
    before: str
    """Behaviour at commit de07a2d."""
    now: str
    """Behaviour now."""
    play: Play
    slow: bool = False
    """Excluded from the short form."""
    alone: bool = False
    """Must not run concurrently with other faults, because it loads the host or stops its processes."""
    root: bool = False
    """Needs root."""
