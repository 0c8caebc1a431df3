"""Several steps of the optimizer on the rollouts of one update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rollyard.training.train_config import TrainConfig
from tests.external.training.tiny_policy import make_model
from tests.external.training.training_runs import make_update, trained


@pytest.mark.parametrize("name", ["dapo", "gspo", "cispo"])
def test_three_iterations_change_the_weights_as_three_updates_on_the_same_rollouts(name: str, tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model, count=3)
    loss = {"algorithm": name}
    one = trained(model, [update], tmp_path / "one", loss=loss, optimizer={"num_iterations": 3})
    three = trained(model, [update] * 3, tmp_path / "three", loss=loss)
    start = model.state_dict()
    for key, value in three.model.state_dict().items():
        assert torch.equal(one.model.state_dict()[key], value), key
    assert any(not torch.equal(start[key], value) for key, value in one.model.state_dict().items())
    assert one.state.global_step == 1


def test_ratios_are_those_of_the_last_iteration_and_parity_that_of_the_first(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model, count=3)
    once = trained(model, [update], tmp_path / "once").update_metrics
    found = trained(model, [update], tmp_path / "twice", optimizer={"num_iterations": 2}).update_metrics
    assert found["ratio_max"] > once["ratio_max"] and found["kl"] > once["kl"]
    assert {name: found[name] for name in ("loss", "parity_mean", "parity_max", "entropy")} == {
        name: once[name] for name in ("loss", "parity_mean", "parity_max", "entropy")
    }


def test_the_gradient_of_each_iteration_is_scaled_down(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model, count=3)
    settings = {"num_iterations": 3, "max_grad_norm": 1e-3}
    after = trained(model, [update], tmp_path, optimizer=settings).model.state_dict()
    moved = sum(float((after[key] - value).square().sum()) for key, value in model.state_dict().items()) ** 0.5
    assert 1e-3 < moved <= 3.01e-3


def test_iterations_are_refused_with_reweighted_turns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_iterations.* 2 .*constrained_turns: reweight"):
        TrainConfig(
            model="m", output_dir=tmp_path, loss={"constrained_turns": "reweight"}, optimizer={"num_iterations": 2}
        )
