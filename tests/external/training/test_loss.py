"""The trainer's gradients are those of GRPO written again without TRL."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from rollyard.records.errors import RunError
from rollyard.training.algorithms import ALGORITHMS, Algorithm
from rollyard.training.groups.advantages import Group
from rollyard.training.update import Update, update_of
from tests.external.training.reference import log_probs, reference_loss
from tests.external.training.tiny_policy import make_groups, make_model, make_tokenizer
from tests.external.training.training_runs import LONG, make_update, trained

LENGTH_CONSTANT = 20


def gradients(before: Any, after: Any) -> torch.Tensor:
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return torch.cat([(old - new).detach().flatten() for old, new in pairs])


def expected(model: Any, groups: list[Group], algorithm: Algorithm, start: Any = None) -> tuple[float, torch.Tensor]:
    # TRL has replaced the forward pass of a trained model.
    state, model = model.state_dict(), make_model()
    model.load_state_dict(state)
    loss = reference_loss(model, groups, algorithm, length_constant=LENGTH_CONSTANT, reference_model=start)
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


DIVISIONS = [
    pytest.param("grpo", 4096, marks=pytest.mark.smoke),
    *((name, 40) for name in ALGORITHMS),
    # The averages: over sequences, over tokens, over the sum.
    *(("grpo", 100), ("dapo", 100), ("dapo", 4096), ("dr_grpo", 4096)),
]
"""(algorithm, micro_token_budget)"""


@pytest.mark.parametrize(("name", "micro_token_budget"), DIVISIONS)
def test_loss_and_gradients_equal_the_reference_for_every_division_into_micro_batches(
    name: str, micro_token_budget: int, tmp_path: Path
) -> None:
    model = make_model()
    groups = make_groups(model, ALGORITHMS[name].scale)
    endings = {member.ending for group in groups for member in group.members}
    assert {"failed", "slow", "length"} <= endings and {group.skipped for group in groups} >= {"zero_variance", None}
    update = update_of(groups, max_seq_len=LONG, temperature=1.0)
    trainer = trained(
        model,
        [update],
        tmp_path,
        loss={"algorithm": name, "length_constant": LENGTH_CONSTANT},
        micro_token_budget=micro_token_budget,
    )
    loss, gradient = expected(model, groups, ALGORITHMS[name])
    assert trainer.update_metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert torch.allclose(gradients(model, trainer.model), gradient, atol=1e-5)
    assert gradient.abs().max() > 1e-3


def test_the_divergence_from_the_initial_policy_is_that_of_the_reference(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(start := tmp_path / "start")
    model = type(model).from_pretrained(start)
    update, groups = make_update(model), make_groups(model)
    # After the first step the policy differs from the initial one, whose log-probabilities the second step needs.
    once = trained(model, [update], tmp_path, loss={"algorithm": "grpo", "beta": 0.5})
    twice = trained(model, [update, update], tmp_path, loss={"algorithm": "grpo", "beta": 0.5})
    algorithm = dataclasses.replace(ALGORITHMS["grpo"], beta=0.5)
    _, gradient = expected(once.model, groups, algorithm, start=model)
    assert torch.allclose(gradients(once.model, twice.model), gradient, atol=1e-5)


def test_the_divergence_from_the_initial_policy_is_a_figure_of_the_update(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(start := tmp_path / "start")
    model = type(model).from_pretrained(start)
    update = make_update(model)
    once = trained(model, [update], tmp_path, loss={"algorithm": "grpo", "beta": 0.5})
    twice = trained(model, [update, update], tmp_path, loss={"algorithm": "grpo", "beta": 0.5})
    differences = torch.cat(
        [
            (log_probs(model, one) - log_probs(once.model, one))[torch.tensor(one.loss_mask).bool()]
            for one in update.sequences
        ]
    )
    assert once.update_metrics["kl_initial"] == pytest.approx(0, abs=1e-9)
    expected_kl = (differences.exp() - 1 - differences).mean().item()
    assert twice.update_metrics["kl_initial"] == pytest.approx(expected_kl, rel=1e-3) and expected_kl > 1e-6
    assert "kl_initial" not in trained(model, [update], tmp_path).update_metrics


def test_tokens_of_a_constrained_distribution_get_importance_weights_up_to_the_limit(tmp_path: Path) -> None:
    model = make_model()
    groups = make_groups(model, noise=1.5)
    update = update_of(groups, max_seq_len=LONG, temperature=1.0)
    constrained = [dataclasses.replace(one, reweighted=list(one.loss_mask)) for one in update.sequences]
    trainer = trained(model, [dataclasses.replace(update, sequences=tuple(constrained))], tmp_path)
    model, losses = copy.deepcopy(model), []
    for sequence, advantage in zip(update.sequences, update.advantages, strict=True):
        mask = torch.tensor(sequence.loss_mask).bool()
        own = log_probs(model, sequence)[mask]
        weights = (own.detach() - torch.tensor(sequence.log_probs)[mask]).exp().clamp(max=2.0)
        losses.append((-(own - own.detach()).exp() * weights * advantage).mean())
    torch.stack(losses).mean().backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert torch.allclose(gradients(make_model(), trainer.model), gradient, atol=1e-5)


def test_a_generated_padding_token_has_a_loss_like_any_other(tmp_path: Path) -> None:
    model, pad = make_model(), make_tokenizer().pad_token_id
    update = make_update(model)
    ends = [dataclasses.replace(one, completion_ids=[*one.completion_ids[:-1], pad]) for one in update.sequences]
    ends = [dataclasses.replace(one, log_probs=log_probs(model, one).tolist()) for one in ends]
    trainer = trained(model, [dataclasses.replace(update, sequences=tuple(ends))], tmp_path)
    loss = torch.stack(
        [
            -advantage * log_probs(model, one)[torch.tensor(one.loss_mask).bool()].mean()
            for one, advantage in zip(ends, update.advantages, strict=True)
        ]
    ).mean()
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
    assert torch.allclose(gradients(model, trainer.model), gradient, atol=1e-5)


def test_recorded_numbers_of_tokens_without_a_loss_change_nothing(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model)
    other = [
        dataclasses.replace(
            one,
            log_probs=[value if mask else -500.0 for value, mask in zip(one.log_probs, one.loss_mask, strict=True)],
        )
        for one in update.sequences
    ]
    first = trained(model, [update], tmp_path)
    second = trained(model, [dataclasses.replace(update, sequences=tuple(other))], tmp_path)
    assert torch.equal(gradients(model, first.model), gradients(model, second.model))


def test_a_gradient_that_is_not_finite_ends_the_training_before_it_changes_the_weights(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model)
    wrong = dataclasses.replace(update.sequences[0], log_probs=[-500.0] * len(update.sequences[0].log_probs))
    wrong_update = dataclasses.replace(update, sequences=(wrong, *update.sequences[1:]))
    weights: list[Any] = []

    class Weights(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            weights.append(more["model"])

    with pytest.raises(RunError, match=r"update 1 .*(nan|inf) .*learning_rate"):
        trained(model, [wrong_update], tmp_path, {"callbacks": [Weights()]})
    assert not gradients(model, weights[0]).any()


def test_a_sequence_that_is_too_long_is_counted_and_has_no_loss() -> None:
    groups = make_groups(make_model())
    update = update_of(groups, max_seq_len=LONG, temperature=1.0)
    longest = max(sequence.length for sequence in update.sequences)
    shorter = update_of(groups, max_seq_len=longest - 1, temperature=1.0)
    assert shorter.too_long == sum(sequence.length == longest for sequence in update.sequences)
    assert len(shorter.sequences) == len(update.sequences) - shorter.too_long


def test_another_sampling_temperature_stops_the_training() -> None:
    with pytest.raises(RunError, match=r"temperature 1, .* 0\.7"):
        update_of(make_groups(make_model()), max_seq_len=LONG, temperature=0.7)


def test_an_update_without_a_sequence_changes_nothing_and_the_next_one_does(tmp_path: Path) -> None:
    model = make_model()
    trainer = trained(model, [Update((), ()), make_update(model)], tmp_path)
    _, gradient = expected(model, make_groups(model), ALGORITHMS["grpo"])
    assert trainer.state.global_step == 2
    assert torch.allclose(gradients(model, trainer.model), gradient, atol=1e-5)


def test_training_ends_with_its_updates(tmp_path: Path) -> None:
    model = make_model()
    trainer = trained(model, [make_update(model), make_update(model, seed=1)], tmp_path, max_steps=5)
    assert trainer.state.global_step == 2


def test_the_figures_compare_the_policy_with_the_recorded_log_probabilities(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model, noise=0.3)
    found = trained(model, [update], tmp_path).update_metrics
    differences = torch.cat(
        [
            (log_probs(model, one) - torch.tensor(one.log_probs))[torch.tensor(one.loss_mask).bool()]
            for one in update.sequences
        ]
    )
    assert found["ratio_mean"] == pytest.approx(differences.exp().mean().item(), rel=1e-5)
    assert found["ratio_max"] == pytest.approx(differences.exp().max().item(), rel=1e-5)
    assert found["parity_mean"] == pytest.approx(differences.abs().mean().item(), rel=1e-5)
    assert found["kl"] == pytest.approx((differences.exp() - 1 - differences).mean().item(), rel=1e-4)
    assert 0 < found["clip_rate"] < 0.5 and found["entropy"] == pytest.approx(6.9, abs=0.1)
    assert found["grad_norm"] > 0 and found["learning_rate"] > 0
