"""RolloutTrainer computes the losses of the papers, in parts, in bfloat16, with adapters and in several iterations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, TrainerCallback

from rollyard.interop.episodes_of_trainers import ranges_of
from rollyard.records.errors import RunError
from rollyard.training.groups import RolloutGroup
from rollyard.training.train_config import ALGORITHMS, Algorithm, LoraSettings
from rollyard.training.training_sequence import TrainingSequence
from rollyard.training.trl.policy_trainer import lora_config
from rollyard.training.trl.rollout_trainer import RolloutTrainer
from rollyard.training.update import LOG_RATIO_EDGES, Update, update_of
from tests.external.training.reference import log_probs, reference_loss
from tests.external.training.tiny_policy import make_groups, make_model, make_tokenizer
from tests.external.training.training_runs import LONG, make_update, trained

LENGTH_CONSTANT = 20


def gradients(before: Any, after: Any) -> torch.Tensor:
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return torch.cat([(old - new).detach().flatten() for old, new in pairs])


def flat_gradient(loss: torch.Tensor, model: Any) -> torch.Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])


def own(model: Any, sequence: TrainingSequence) -> torch.Tensor:
    """The model's log-probabilities of the tokens with a loss."""
    return log_probs(model, sequence)[torch.tensor(sequence.loss_mask).bool()]


def recorded(sequence: TrainingSequence) -> torch.Tensor:
    return torch.tensor(sequence.log_probs)[torch.tensor(sequence.loss_mask).bool()]


def with_sequences(update: Update, sequences: Iterable[TrainingSequence]) -> Update:
    return dataclasses.replace(update, sequences=tuple(sequences))


def mean_over_episodes(update: Update, losses: list[torch.Tensor]) -> torch.Tensor:
    """`losses`: those of each sequence's tokens with a loss."""
    pairs = list(zip(update.episodes, losses, strict=True))
    episodes = dict.fromkeys(update.episodes)
    return torch.stack([torch.cat([loss for own, loss in pairs if own == one]).mean() for one in episodes]).mean()


def expected(
    model: Any, groups: list[RolloutGroup], algorithm: Algorithm, start: Any = None
) -> tuple[float, torch.Tensor]:
    # TRL has replaced the forward pass of a trained model.
    state, model = model.state_dict(), make_model()
    model.load_state_dict(state)
    loss = reference_loss(model, groups, algorithm, length_constant=LENGTH_CONSTANT, reference_model=start)
    return loss.item(), flat_gradient(loss, model)


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


def test_the_auxiliary_loss_of_a_mixture_of_experts_counts_once_however_an_update_is_divided(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 1.0}
    dense = make_model()
    config = Qwen3MoeConfig(vocab_size=dense.config.vocab_size, tie_word_embeddings=False, **sizes, **heads, **experts)
    update = make_update(dense)
    losses = []
    for budget in (4096, 40):
        torch.manual_seed(0)
        model = Qwen3MoeForCausalLM(config).float()
        trainer = trained(model, [update], tmp_path / str(budget), micro_token_budget=budget)
        losses.append(trainer.update_metrics["loss"])
    assert losses[0] > 1.0  # it is about 2, as each token goes to two experts
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "cispo"])
def test_an_episode_that_its_agent_cut_into_sequences_counts_like_one_with_all_its_tokens(
    name: str, tmp_path: Path
) -> None:
    model = make_model()
    model.save_pretrained(start := tmp_path / "start")
    model = type(model).from_pretrained(start)
    algorithm = {"algorithm": name, "beta": 0.1, "length_constant": LENGTH_CONSTANT}
    whole = make_update(model)
    turns = [(index, one) for index, sequence in enumerate(whole.sequences) for one in turns_of(sequence)]
    assert len(turns) > len(whole.sequences)
    cut = Update(
        tuple(one for _, one in turns),
        tuple(whole.advantages[index] for index, _ in turns),
        tuple(whole.episodes[index] for index, _ in turns),
    )
    one, other = (trained(model, [each], tmp_path, loss=algorithm) for each in (whole, cut))
    assert other.update_metrics["loss"] == pytest.approx(one.update_metrics["loss"], abs=1e-5)
    assert torch.allclose(gradients(model, other.model), gradients(model, one.model), atol=1e-5)


def turns_of(sequence: TrainingSequence) -> list[TrainingSequence]:
    """A sequence for each turn, with what precedes it as its prompt."""
    ids, start = sequence.prompt_ids + sequence.completion_ids, len(sequence.prompt_ids)
    found = []
    for begin, end in ranges_of(sequence.loss_mask):
        parts: dict[str, Any] = {
            name: getattr(sequence, name)[begin:end] for name in ("loss_mask", "log_probs", "reweighted", "versions")
        }
        ranges: dict[str, Any] = {
            "prompt_ids": ids[: start + begin],
            "completion_ids": ids[start + begin : start + end],
        }
        found.append(dataclasses.replace(sequence, **ranges, **parts))
    return found


def test_the_divergence_from_the_initial_policy_is_that_of_the_reference_and_a_figure(
    tmp_path: Path,
) -> None:
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
    differences = torch.cat([own(model, one) - own(once.model, one) for one in update.sequences])
    assert once.update_metrics["kl_initial"] == pytest.approx(0, abs=1e-9)
    expected_kl = (differences.exp() - 1 - differences).mean().item()
    assert twice.update_metrics["kl_initial"] == pytest.approx(expected_kl, rel=1e-3) and expected_kl > 1e-6
    assert "kl_initial" not in trained(model, [update], tmp_path).update_metrics


def test_tokens_of_a_constrained_distribution_get_importance_weights_up_to_the_limit(tmp_path: Path) -> None:
    model = make_model()
    groups = make_groups(model, noise=1.5)
    update = update_of(groups, max_seq_len=LONG, temperature=1.0)
    constrained = [dataclasses.replace(one, reweighted=list(one.loss_mask)) for one in update.sequences]
    trainer = trained(model, [with_sequences(update, constrained)], tmp_path)
    losses = []
    for sequence, advantage in zip(update.sequences, update.advantages, strict=True):
        found = own(model, sequence)
        weights = (found.detach() - recorded(sequence)).exp().clamp(max=2.0)
        losses.append(-(found - found.detach()).exp() * weights * advantage)
    gradient = flat_gradient(mean_over_episodes(update, losses), model)
    assert torch.allclose(gradients(model, trainer.model), gradient, atol=1e-5)


def test_a_generated_padding_token_has_a_loss_like_any_other(tmp_path: Path) -> None:
    model, pad = make_model(), make_tokenizer().pad_token_id
    update = make_update(model)
    ends = [dataclasses.replace(one, completion_ids=[*one.completion_ids[:-1], pad]) for one in update.sequences]
    ends = [dataclasses.replace(one, log_probs=log_probs(model, one).tolist()) for one in ends]
    trainer = trained(model, [with_sequences(update, ends)], tmp_path)
    losses = [-advantage * own(model, one) for one, advantage in zip(ends, update.advantages, strict=True)]
    gradient = flat_gradient(mean_over_episodes(update, losses), model)
    assert torch.allclose(gradients(model, trainer.model), gradient, atol=1e-5)


def test_recorded_numbers_of_tokens_without_a_loss_change_nothing(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model)
    wrong = [[value if mask else -500.0 for value, mask in zip(one.log_probs, one.loss_mask, strict=True)]
             for one in update.sequences]  # fmt: skip
    other = [dataclasses.replace(one, log_probs=found) for one, found in zip(update.sequences, wrong, strict=True)]
    first = trained(model, [update], tmp_path)
    second = trained(model, [with_sequences(update, other)], tmp_path)
    assert torch.equal(gradients(model, first.model), gradients(model, second.model))


def test_a_gradient_that_is_not_finite_ends_the_training_before_it_changes_the_weights(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model)
    wrong = dataclasses.replace(update.sequences[0], log_probs=[-500.0] * len(update.sequences[0].log_probs))
    wrong_update = with_sequences(update, [wrong, *update.sequences[1:]])
    weights: list[Any] = []

    class Weights(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            weights.append(more["model"])

    with pytest.raises(RunError, match=r"update 1 .*(nan|inf) .*learning_rate"):
        trained(model, [wrong_update], tmp_path, {"callbacks": [Weights()]})
    assert not gradients(model, weights[0]).any()


def test_an_update_without_a_sequence_changes_nothing_and_training_ends_with_the_updates(tmp_path: Path) -> None:
    model = make_model()
    trainer = trained(model, [Update((), (), ()), make_update(model)], tmp_path, max_steps=5)
    _, gradient = expected(model, make_groups(model), ALGORITHMS["grpo"])
    assert trainer.state.global_step == 2
    assert torch.allclose(gradients(model, trainer.model), gradient, atol=1e-5)


def test_the_figures_compare_the_policy_with_the_recorded_log_probabilities(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model, noise=0.3)
    found = trained(model, [update], tmp_path).update_metrics
    differences = torch.cat([own(model, one) - recorded(one) for one in update.sequences])
    assert found["ratio_mean"] == pytest.approx(differences.exp().mean().item(), rel=1e-5)
    assert found["ratio_max"] == pytest.approx(differences.exp().max().item(), rel=1e-5)
    assert found["parity_mean"] == pytest.approx(differences.abs().mean().item(), rel=1e-5)
    assert found["kl"] == pytest.approx((differences.exp() - 1 - differences).mean().item(), rel=1e-4)
    assert 0 < found["clip_rate"] < 0.5 and found["entropy"] == pytest.approx(6.9, abs=0.1)
    assert found["grad_norm"] > 0 and found["learning_rate"] > 0


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
    assert all(found[name] == once[name] for name in ("loss", "parity_mean", "parity_max", "entropy"))


def test_the_gradient_of_each_iteration_is_scaled_down(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model, count=3)
    settings = {"num_iterations": 3, "max_grad_norm": 1e-3}
    after = trained(model, [update], tmp_path, optimizer=settings).model.state_dict()
    moved = sum(float((after[key] - value).square().sum()) for key, value in model.state_dict().items()) ** 0.5
    assert 1e-3 < moved <= 3.01e-3


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
    gradient = flat_gradient(loss, exact)
    assert trainer.update_metrics["loss"] == pytest.approx(loss.item(), abs=0.01)
    difference = (kept.gradient - gradient).norm() / gradient.norm()
    assert difference < 0.05


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


def test_pairs_are_the_log_probabilities_before_the_first_step(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model)
    before = [log_probs(model, one) for one in update.sequences]
    pairs = trained(model, [update], tmp_path, optimizer={"num_iterations": 2}).token_pairs
    assert pairs is not None and pairs.sample
    for pair in (*pairs.sample, *pairs.largest):
        sequence = update.sequences[pair.sequence]
        assert sequence.loss_mask[pair.position]
        assert pair.engine == pytest.approx(sequence.log_probs[pair.position], abs=1e-5)
        assert pair.trainer == pytest.approx(before[pair.sequence][pair.position].item(), abs=1e-4)


@pytest.mark.parametrize("micro_token_budget", [40, 100])
def test_pairs_are_the_same_for_every_division_and_their_histogram_counts_every_token_with_a_loss(
    micro_token_budget: int, tmp_path: Path
) -> None:
    model = make_model()
    update = make_update(model)
    whole = trained(model, [update], tmp_path / "whole").token_pairs
    divided = trained(model, [update], tmp_path / "divided", micro_token_budget=micro_token_budget).token_pairs
    assert whole is not None and divided is not None
    assert sum(whole.histogram) == whole.tokens == update.loss_tokens
    assert len(whole.histogram) == len(LOG_RATIO_EDGES) + 1
    places = [[(one.sequence, one.position) for one in pairs.sample] for pairs in (whole, divided)]
    assert places[0] == places[1]
    assert [one.trainer for one in divided.sample] == pytest.approx([one.trainer for one in whole.sample], abs=1e-5)
