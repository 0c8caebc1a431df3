"""What the training loop needs of the trainer; training/trl/policy_trainer.py implements it with TRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rollyard.training.transfer_publisher import TransferMethod, WeightSender
from rollyard.training.update import TokenPairs, Update

Save = Callable[[Path], None]
"""Writes a model folder, as `from_pretrained` reads it."""


class TrainerHooks(Protocol):
    """What the trainer calls. `started` and `updated` are called in every process, `next_update` in the main one."""

    def started(self) -> None: ...

    def next_update(self, step: int) -> Update | None:
        """Return the sequences of the update with this number; None to end training."""

    def updated(self) -> None: ...


class PolicyTrainer(Protocol):
    """The model and its optimizer, in this process or distributed over several. Unless noted, all processes have to
    call a method together.
    """

    @property
    def is_main(self) -> bool:
        """True in the process that calls the stack and writes the run folder."""

    @property
    def step(self) -> int: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...

    @property
    def token_pairs(self) -> TokenPairs | None:
        """Log-probabilities of engine and trainer of the latest update."""

    def share(self, text: str | None) -> str | None:
        """Return the text that the main process passed."""

    def run(self, checkpoint: Path | None) -> None:
        """Train from a checkpoint, or from the initial model, until there is no further update."""

    def weights(self) -> Save:
        """Return a function that writes the current weights. Only the main process may call it, in any thread."""

    def save_state(self, folder: Path) -> None:
        """Write everything from which `run` resumes into an existing folder."""

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of every token but the first of each sequence, at temperature 1. Only the main
        process may call it, in any thread.
        """

    @property
    def has_whole_model(self) -> bool:
        """False if the weights are distributed over processes, so that one alone cannot compute log-probabilities."""

    @property
    def has_gpu(self) -> bool:
        """True if the weights are on a GPU."""

    def sender(self, method: TransferMethod) -> WeightSender:
        """Return the trainer's side of a transfer of the weights between GPUs. Only the main process may call it."""

    def wait(self) -> None:
        """Wait until all processes have called this."""
