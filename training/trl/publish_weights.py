"""PublishWeights: a callback that gives the engines the trainer's weights after every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rollyard.training.run_folder import version_names
from rollyard.training.trl.save_policy import gather_policy
from rollyard.training.trl.stack_session import StackSession


class PublishWeights(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where mypy runs
    """Publishes the weights at the start of the training and after every optimizer step, before the next rollouts.

    The version after twelve steps is step_000012.
    """

    def __init__(self, trainer: Any, session: StackSession, folder: Path, *, timeout_s: float = 600.0) -> None:
        """`folder`: where the versions are stored, for the engines to read."""
        self._trainer = trainer
        self._publish = session.publisher(folder, timeout_s=timeout_s)
        self._name = version_names(folder)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._publish_step(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._publish_step(state.global_step)

    def _publish_step(self, step: int) -> None:
        save = gather_policy(self._trainer)
        if save is not None:
            self._publish(self._name(step), save)
        self._trainer.accelerator.wait_for_everyone()
