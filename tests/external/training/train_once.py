"""Trains a random policy for one update by each algorithm and saves its weights in FOLDER:

    python -m tests.external.training.train_once FOLDER ALGORITHM:MICRO_TOKEN_BUDGET...

Run by torchrun, to test that several processes compute what one computes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from rollyard.training.trl.rollout_trainer import RolloutTrainer
from tests.external.training.tiny_policy import make_model
from tests.external.training.training_runs import make_update, trained


def train(folder: Path, algorithm: str, budget: int) -> RolloutTrainer:
    model = make_model()
    update = make_update(model, count=3)
    return trained(model, [update], folder, loss={"algorithm": algorithm}, micro_token_budget=budget)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for kind in sys.argv[2:]:
        algorithm, _, budget = kind.partition(":")
        trainer = train(folder / algorithm, algorithm, int(budget))
        if trainer.accelerator.is_main_process:
            torch.save((trainer.model.state_dict(), trainer.update_metrics), folder / f"{algorithm}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
