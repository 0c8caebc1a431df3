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
    now: str
    """Behaviour now."""
    play: Play
    slow: bool = False
    """Excluded from the short form."""
    alone: bool = False
    """Must not run concurrently with other faults, because it loads the host or stops its processes."""
    root: bool = False
    """Needs root."""


@dataclass(frozen=True)
class Result:
    """`verdict` is held, broken or not injected; unless held, `why` gives the reason."""

    fault: Fault
    seed: int
    verdict: str
    why: str
    seconds: float

    def summary(self) -> str:
        line = f"{self.verdict:<12} {self.seconds:5.1f} s  {self.fault.section}  {self.fault.name} (seed {self.seed})"
        return line if self.verdict == "held" else f"{line}\n      {self.why.strip()}"
