"""Trains a random policy and saves it in FOLDER/KIND, to test that several processes compute what one computes:

    python -m tests.external.training.train_sharded FOLDER KIND...

Run by accelerate with FSDP for `all` weights and `adapters`; the kinds that are algorithms are run by
training_process.py. accelerate sets up FSDP only on accelerators, so that this program does it on CPUs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from rollyard.training.train_config import LoraSettings
from rollyard.training.trl.policy_trainer import lora_config
from rollyard.training.trl.rollout_trainer import RolloutTrainer
from rollyard.training.trl.save_policy import AdapterMode, gather_policy
from tests.external.training.tiny_policy import make_model
from tests.external.training.training_runs import make_update, trained

BUDGETS = {"gspo": 110, "dapo": 110, "grpo": 4096, "all": 110, "adapters": 110}
"""Kind -> micro_token_budget."""
SHARDED = ("all", "adapters")


def allow_fsdp_on_cpus() -> None:
    set_up = AcceleratorState.__init__

    def with_fsdp(self: Any, *arguments: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        set_up(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = with_fsdp


def train(folder: Path, kind: str, micro_token_budget: int) -> RolloutTrainer:
    """Train by plain gradient descent. Save the policy in `policy`, and adapters in `adapters`."""
    model = make_model()
    options: dict[str, Any] | None = None
    if kind == "adapters":
        torch.manual_seed(1)
        options = {"peft_config": lora_config(LoraSettings(rank=4))}
    trainer = trained(
        model,
        [make_update(model, count=3, seed=seed) for seed in ((0, 1) if kind in SHARDED else (0,))],
        folder,
        options,
        loss={"algorithm": "dapo" if kind in SHARDED else kind},
        micro_token_budget=micro_token_budget,
        optimizer={"learning_rate": 1.0, "weight_decay": 0.0},
        optim="sgd",
    )
    save(trainer, folder / "policy", "merge")
    if kind == "adapters":
        save(trainer, folder / "adapters", "adapter")
    return trainer


def save(trainer: RolloutTrainer, folder: Path, lora: AdapterMode) -> None:
    write = gather_policy(trainer, lora=lora)
    if write is not None:
        write(folder)
    trainer.accelerator.wait_for_everyone()


def train_kinds(results: Path, kinds: list[str]) -> None:
    for kind in kinds:
        folder = results / kind
        folder.mkdir(exist_ok=True)
        trainer = train(folder, kind, BUDGETS[kind])
        sharded = sum(isinstance(value, torch.distributed.tensor.DTensor) for value in trainer.model.parameters())
        if trainer.accelerator.is_main_process:
            figures = {**trainer.update_metrics, "sharded": sharded, "processes": trainer.accelerator.num_processes}
            (folder / "figures.json").write_text(json.dumps(figures))


def main() -> None:
    torch.set_num_threads(1)
    allow_fsdp_on_cpus()
    train_kinds(Path(sys.argv[1]), sys.argv[2:])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
