"""Chooses how many processes each server with `replicas: auto` gets, from the cores that they can use.

What an episode costs each kind of process was measured (costs.json); `ng_capacity` calculates from it, too.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollyard.records.errors import OperatorError
from rollyard.records.terminal import pluralize
from rollyard.services.config.run_config import RunConfig

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


TURNS, SENT_KB = 6, 12.0
"""The episode for whose costs the cores are shared out: that of benchmarks/scale.py, in which calls are short."""
TURNS_PER_S = 3000.0
"""Of a process that uses about its core."""


def with_replicas(config: RunConfig, here: Container[str], cores: float | None, costs: Path = MEASURED) -> RunConfig:
    """Return the config with the number of processes that `replicas: auto` stands for, and a note for each such server.

    The cores are shared out among the servers that start `here` by what a turn costs in each family, without an
    environment's own computing, and equally within a family, so that all processes together use about as many cores as
    there are. Every server has at least one process, and only one if `cores` is None: then all servers share a process.
    """
    sharing = [spec for spec in config.servers if spec.name in here and spec.external_url is None]
    if not any(spec.is_auto for spec in sharing):
        return config
    count = Counter(spec.family for spec in sharing)
    measured = read_costs(costs)
    kinds = {
        "responses_api_models": measured.model,
        "agents": measured.agent,
        "resources_servers": measured.environment,
    }
    cost = {family: kinds[family].cpu_ms(TURNS, SENT_KB, TURNS_PER_S) for family in count}
    cores_per_cost = (cores or 0.0) / (sum(cost.values()) + measured.collector.cpu_ms(TURNS, SENT_KB, TURNS_PER_S))
    replicas = {family: max(1, round(cores_per_cost * cost[family] / count[family])) for family in count}
    chosen = {spec.name: replicas[spec.family] for spec in sharing if spec.is_auto}
    why = "all servers share one process"
    if cores is not None:
        why = f"{cores:g} core{'s' * (cores != 1)} for {pluralize(len(sharing), 'server')}"
    notes = (f"{name}: {pluralize(number, 'replica')} (auto: {why})" for name, number in chosen.items())
    servers = (replace(spec, auto_replicas=chosen.get(spec.name)) for spec in config.servers)
    return replace(config, servers=tuple(servers), notes=(*config.notes, *notes))


def usable_cores(root: Path = Path("/")) -> float:
    """Return how many cores this process may use: those of its affinity, and at most its control groups' quota."""
    return min([len(os.sched_getaffinity(0)), *_quotas(root)])


def _quotas(root: Path) -> Iterator[float]:
    """Yield the limits of this process's control groups and of those that contain them, in cores.

    In a container, the folders of the groups above are not visible, and the container's own group is the top.
    """
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(top):
                    yield from _quota(folder, is_first_version=bool(controllers))


def _quota(folder: Path, *, is_first_version: bool) -> Iterator[float]:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first_version else ("cpu.max",)
    with contextlib.suppress(OSError, ValueError):  # ValueError: `max 100000` sets no limit
        quota, period = (int(text) for name in names for text in (folder / name).read_text().split())
        if quota > 0:
            yield quota / period
