"""Adapters are trained instead of all weights."""

from __future__ import annotations

from pathlib import Path

import torch

from rollyard.training.train_config import LoraSettings
from rollyard.training.trl.grpo_settings import lora_config
from tests.external.training.tiny_policy import make_model
from tests.external.training.training_runs import make_update, trained


def test_adapters_change_and_the_model_below_them_does_not(tmp_path: Path) -> None:
    model = make_model()
    options = {"peft_config": lora_config(LoraSettings(rank=4))}
    trainer = trained(model, [make_update(model)] * 2, tmp_path, options, loss={"algorithm": "grpo", "beta": 0.1})
    state = trainer.model.state_dict()
    adapters = [value for name, value in state.items() if "lora_B" in name]
    assert adapters and all(value.abs().max() > 0 for value in adapters)  # they start as 0
    for name, value in model.state_dict().items():
        below = state.get(
            f"base_model.model.{name}", state.get(f"base_model.model.{name}".replace(".weight", ".base_layer.weight"))
        )
        assert below is not None and torch.equal(below, value), name
    assert trainer.update_metrics["kl"] > 0
