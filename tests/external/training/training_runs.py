"""Trains a random policy on given updates."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rollyard.training.train_config import TrainConfig
from rollyard.training.trl.policy_trainer import grpo_config
from rollyard.training.trl.rollout_trainer import RolloutTrainer
from rollyard.training.update import Update, update_of
from tests.external.training.tiny_policy import make_groups, make_tokenizer

LONG = 1024


def trained(
    model: Any, updates: Sequence[Update], folder: Path, options: dict[str, Any] | None = None, **settings: Any
) -> RolloutTrainer:
    """Train a copy of the model, without `options` by plain gradient descent: the weights change by the gradient.
    `optim`: the optimizer's name in transformers, if `options` has none.
    """
    optim = settings.pop("optim", None)
    budget = settings.pop("micro_token_budget", 4096)
    settings.setdefault("loss", {"algorithm": "grpo"})
    config = TrainConfig(
        model="",
        output_dir=folder,
        max_steps=settings.pop("max_steps", len(updates)),
        optimizer={
            "max_grad_norm": 1e9,
            "max_seq_len": LONG,
            "micro_token_budget": max(budget, LONG),
            **settings.pop("optimizer", {}),
        },
        **settings,
    )
    model = copy.deepcopy(model)
    args = grpo_config(config, folder)
    if optim is not None:
        args.optim, options = optim, options or {"callbacks": []}
    trainer = RolloutTrainer(
        model=model,
        args=args,
        processing_class=make_tokenizer(),
        next_update=lambda step: updates[step - 1] if step <= len(updates) else None,
        micro_token_budget=budget,
        max_importance_weight=config.loss.max_importance_weight,
        iterations=config.optimizer.num_iterations,
        **options or {"optimizers": (torch.optim.SGD(model.parameters(), lr=1.0), None)},
    )
    trainer.train()
    return trainer


def make_update(model: Any, **options: Any) -> Update:
    return update_of(make_groups(model, **options), max_seq_len=LONG, temperature=1.0)
