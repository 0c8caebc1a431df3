"""What an episode costs each kind of process, as measured: `replicas: auto` and `ng_capacity` calculate from it."""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollyard.records.errors import OperatorError

MEASURED = Path(__file__).with_name("costs.json")
"""The costs that are used unless others are given; `make scale` measures them."""
TOGETHER_S = 0.003
"""Requests that reach a process within this time of each other share a wake-up."""


class Costs(BaseModel):
    """What an episode costs one kind of process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episode_ms: float = Field(ge=0)
    turn_ms: float = Field(ge=0)
    wake_ms: float = Field(default=0.0, ge=0)
    """CPU per turn to wake up for its requests, if it does so for each alone. Older files have none."""
    kb_ms: float = Field(ge=0)
    """CPU per kB that is sent to the model: each call sends the whole conversation."""
    base_mb: float = Field(ge=0)
    """Memory of a process without episodes."""
    episode_kb: float = Field(ge=0)
    """Memory of an episode in flight with a short conversation."""
    copies: float = Field(ge=0)
    """How many times the bytes of a conversation are in memory."""
    files: float = Field(ge=0)
    """Open files per episode in flight."""

    def cpu_ms(self, turns: int, sent_kb: float, turns_per_s: float = math.inf) -> float:
        """Return the CPU time of an episode.

        `sent_kb`: what the model gets in all its calls; `turns_per_s`: of the process, by default too many to sleep.
        """
        woken = 1 / (1 + turns_per_s * TOGETHER_S)
        return self.episode_ms + turns * (self.turn_ms + woken * self.wake_ms) + sent_kb * self.kb_ms


class Measured(BaseModel):
    """Costs that `python -m benchmarks.scale` measured on one host."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    measured: str
    """When, where, and which commit."""
    agent: Costs
    model: Costs
    environment: Costs
    collector: Costs

    def kinds(self) -> dict[str, Costs]:
        return {
            "agent": self.agent,
            "model server": self.model,
            "environment": self.environment,
            "collector": self.collector,
        }


def read_costs(path: Path) -> Measured:
    try:
        return Measured.model_validate_json(path.read_bytes())
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise OperatorError(
            f"{path} does not hold costs of `python -m benchmarks.scale --costs FILE`: "
            f"{error.errors()[0]['msg']} ({'.'.join(map(str, error.errors()[0]['loc']))})"
        ) from error
