"""Result: the outcome of one fault with one seed."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.chaos.fault import Fault


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
