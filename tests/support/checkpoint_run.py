"""Engines started from a real checkpoint, behind a model server that checks the values of new checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.checkpoints import write_checkpoint
from tests.support.weight_engine import TrainerClient, WeightEngine, trainer_server

READ_ONLY_PATHS = {"/v1/models", "/server_info?config_format=json", "/v1/chat/completions"}
"""Status queries and model calls: none of them changes an engine."""


class CheckpointRun:
    """A training run: its base checkpoint, its engines and the checkpoints that it writes."""

    def __init__(self, folder: Path, engines: int = 1) -> None:
        self.folder = folder
        self.base = write_checkpoint(folder / "base")
        self.engines = [WeightEngine(root=self.base) for _ in range(engines)]

    def serve(self, **settings: Any) -> Any:
        return trainer_server(*self.engines, weights_check="values", **settings)

    def new_checkpoint(self, number: int) -> str:
        return write_checkpoint(self.folder / f"step-{number}", seed=number)

    def overwrite_checkpoint(self, number: int) -> str:
        """Write a checkpoint over the previous one."""
        return write_checkpoint(self.folder / "latest", seed=number)


def active_urls(policy: TrainerClient) -> list[str]:
    return policy.server.upstream.replicas.urls
