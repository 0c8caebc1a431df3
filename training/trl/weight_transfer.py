"""StackWeightTransfer: gives the weights of TRL's AsyncGRPOTrainer to the engines of a running stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

from rollyard.records.errors import RunError
from rollyard.training.trl.stack_session import Publish, StackSession
from rollyard.training.versions import VersionNames


class StackWeightTransfer:
    """Saves the weights that the trainer streams as a version, and loads it into all engines. Its number, 12 for
    step_000012, is the trainer's `model_version` once it is loaded: the initial weights are 1.

    The model server pauses the engines while they load, and resumes them if the trainer disappears meanwhile. `pause`
    and `resume` therefore do nothing.
    """

    def __init__(self, session: StackSession, folder: Path, model_folder: Path, *, timeout_s: float = 600.0) -> None:
        """`folder`: where the versions are stored, for the engines to read. `model_folder`: the initial model, whose
        config and tokenizer are copied to each version.
        """
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        self._publish: Publish = session.publisher(folder, timeout_s=timeout_s)
        self._config: Any = AutoConfig.from_pretrained(model_folder)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
        has_generation = (model_folder / "generation_config.json").is_file()
        self._generation: Any = GenerationConfig.from_pretrained(model_folder) if has_generation else None
        self._names = VersionNames(folder)
        self._sent = 0

    def init_weight_transfer(self) -> None:
        """Do nothing: there is no group of processes to set up."""

    def pause(self) -> None:
        """Do nothing: the model server pauses the engines."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Load the weights into the engines. Raises RunError if they refuse them or do not load them in time."""
        # Also the processes that share the weights wait for the end of the iterator.
        state = {name: tensor.detach().cpu() for name, tensor in iterator}
        if not state:
            raise RunError("the trainer sent no weights: all parameters are frozen")

        def save(folder: Path) -> None:
            save_torch_state_dict(state, folder)
            for part in (self._config, self._tokenizer, self._generation):
                if part is not None:
                    part.save_pretrained(folder)

        self._publish(self._names.name(self._sent + 1), save)
        self._sent += 1

    def resume(self) -> None:
        """Do nothing: the model server resumes the engines."""

    def destroy(self) -> None:
        """Do nothing: the session is closed by the program that opened it."""
