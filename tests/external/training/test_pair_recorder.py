"""The recorded pairs of an update are those of the policy before it, for every division into micro-batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rollyard.training.token_pairs import LOG_RATIO_EDGES, TokenPairs
from tests.external.training.reference import log_probs
from tests.external.training.tiny_policy import make_model
from tests.external.training.training_runs import make_update, trained


def recorded(folder: Path, micro_token_budget: int = 4096) -> TokenPairs:
    model = make_model()
    pairs = trained(model, [make_update(model)], folder, micro_token_budget=micro_token_budget).token_pairs
    assert pairs is not None
    return pairs


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


def test_the_histogram_counts_every_token_with_a_loss(tmp_path: Path) -> None:
    model = make_model()
    update = make_update(model)
    pairs = recorded(tmp_path)
    assert sum(pairs.histogram) == pairs.tokens == update.loss_tokens
    assert len(pairs.histogram) == len(LOG_RATIO_EDGES) + 1


@pytest.mark.parametrize("micro_token_budget", [40, 100])
def test_the_division_into_micro_batches_changes_nothing(micro_token_budget: int, tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole")
    divided = recorded(tmp_path / "divided", micro_token_budget=micro_token_budget)
    assert [(one.sequence, one.position) for one in divided.sample] == [
        (one.sequence, one.position) for one in whole.sample
    ]
    assert torch.allclose(
        torch.tensor([one.trainer for one in divided.sample]),
        torch.tensor([one.trainer for one in whole.sample]),
        atol=1e-5,
    )
