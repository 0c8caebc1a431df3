"""The keys of a training YAML."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from rollyard.records.errors import OperatorError
from rollyard.training.groups import DEFAULTS, EndingRules
from rollyard.training.run_folder import MAY_CHANGE
from rollyard.training.train_config import ALGORITHMS, NO_CLIPPING, LossSettings, TrainConfig
from tests.support.doc_pages import page, sections


def test_settings_replace_values_of_the_algorithm() -> None:
    found = LossSettings(algorithm="drgrpo", epsilon=0.1, scale="batch", beta=0.04).resolved
    assert (found.loss_type, found.epsilon, found.epsilon_high) == ("dr_grpo", 0.1, NO_CLIPPING)
    assert (found.scale, found.beta) == ("batch", 0.04)
    assert all(LossSettings(algorithm=name).resolved == known for name, known in ALGORITHMS.items())


def test_an_unknown_algorithm_is_an_operator_error() -> None:
    with pytest.raises(OperatorError, match=r"'ppo'; .*grpo, dr_grpo"):
        LossSettings(algorithm="ppo")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": {"max_seq_len": 100, "micro_token_budget": 99}}, "sequence"),
        ({"group_size": 2, "min_group_members": 3}, "every group"),
        ({"loss": {"constrained_turns": "reweight"}, "optimizer": {"num_iterations": 2}}, "num_iterations is 2"),
        ({"trainer_num_gpus": 1}, "ray_head_node_address"),
        ({"input_jsonl_fpath": "a", "data": "b"}, "use one of them"),
        ({"group_sizes": 2}, "group_sizes"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(model="m", output_dir="out", **settings)


def test_every_key_has_a_description() -> None:
    models: list[Any] = [TrainConfig, *(field.annotation for field in TrainConfig.model_fields.values())]
    for model in models:
        for name, field in getattr(model, "model_fields", {}).items():
            assert field.description, f"{model.__name__}.{name}"


PAGE = page("training.md")


def test_the_page_lists_what_each_way_to_end_means() -> None:
    rows = re.findall(r"^- `(\w+)`: .*: `(\w+)`$", sections(PAGE)["How rollouts end"], re.MULTILINE)
    assert dict(rows) == {str(reason): str(treatment) for reason, treatment in DEFAULTS.items()}
    rules = EndingRules()
    for name, treatment in (("model_timeout", rules.model_timeout), ("server_timeout", rules.server_timeout)):
        assert f"(`endings.{name}`): `{treatment}`" in PAGE


def test_settings_that_may_change_exist() -> None:
    for name in MAY_CHANGE:
        top, _, below = name.partition(".")
        field = TrainConfig.model_fields[top]
        assert not below or below in field.annotation.model_fields, name  # type: ignore[union-attr]
