"""In bfloat16, the forward pass is rounded and the loss is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from rollyard.training.algorithms import ALGORITHMS
from rollyard.training.trl.rollout_trainer import RolloutTrainer
from tests.external.training.reference import reference_loss
from tests.external.training.tiny_policy import make_groups, make_model
from tests.external.training.training_runs import make_update, trained


class KeepGradient(TrainerCallback):  # type: ignore[misc]
    gradient: torch.Tensor

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.gradient = torch.cat([value.grad.float().flatten() for value in more["model"].parameters()])


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_loss_and_gradients_are_those_of_float32_up_to_rounding(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = []
    measure = RolloutTrainer._measure

    def watched(self: Any, *arguments: Any) -> None:
        types.append(self._outputs[0].dtype)
        measure(self, *arguments)

    monkeypatch.setattr(RolloutTrainer, "_measure", watched)
    exact = make_model()
    exact.save_pretrained(tmp_path / "start")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "start", dtype=torch.bfloat16)
    kept = KeepGradient()
    trainer = trained(model, [make_update(exact)], tmp_path, {"callbacks": [kept]}, loss={"algorithm": name})
    assert {value.dtype for value in trainer.model.parameters()} == {torch.bfloat16}
    assert set(types) == {torch.float32}
    loss = reference_loss(exact, make_groups(exact), ALGORITHMS[name], length_constant=20)
    loss.backward()
    gradient = torch.cat([value.grad.flatten() for value in exact.parameters()])
    assert trainer.update_metrics["loss"] == pytest.approx(loss.item(), abs=0.01)
    difference = (kept.gradient - gradient).norm() / gradient.norm()
    assert difference < 0.05
