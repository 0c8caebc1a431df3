"""Trains a random policy for one update and saves its weights: `python -m tests.external.training.train_once FILE`.

Run by torchrun, to test that several processes compute what one computes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from rollyard.services.training.trl.rollout_trainer import RolloutTrainer
from tests.external.training.tiny_policy import make_model
from tests.external.training.training_runs import make_update, trained


def train(folder: Path) -> RolloutTrainer:
    model = make_model()
    update = make_update(model, count=3)
    return trained(model, [update], folder, loss={"algorithm": sys.argv[2]}, micro_token_budget=int(sys.argv[3]))


def main() -> None:
    file = Path(sys.argv[1])
    trainer = train(file.parent)
    if trainer.accelerator.is_main_process:
        torch.save((trainer.model.state_dict(), trainer.update_metrics), file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
