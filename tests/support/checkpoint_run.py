"""Engines that were started with a real checkpoint, behind a server that looks at checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.checkpoints import written
from tests.support.weight_engine import Door, WeightEngine, door

UNTOUCHED = {"/v1/models", "/server_info?config_format=json", "/weight_info", "/v1/chat/completions"}
"""Questions, and model calls: none of them changes an engine."""


class Run:
    """Engines that were started with a real checkpoint, and a server that looks at checkpoints."""

    def __init__(self, folder: Path, engines: int = 1) -> None:
        self.folder = folder
        self.base = written(folder / "base")
        self.engines = [WeightEngine(root=self.base) for _ in range(engines)]

    def door(self, **settings: Any) -> Any:
        return door(*self.engines, weights_check="values", **settings)

    def step(self, number: int) -> str:
        """A checkpoint of its own."""
        return written(self.folder / f"step-{number}", seed=number)

    def reused(self, number: int) -> str:
        """A checkpoint in the place of the one before."""
        return written(self.folder / "latest", seed=number)


def pool(policy: Door) -> list[str]:
    """The engines that calls go to."""
    return policy.server.upstream.replicas.urls
