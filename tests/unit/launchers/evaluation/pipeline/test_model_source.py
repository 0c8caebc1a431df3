"""Where the model of an evaluation comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.pipeline.model_source import NO_KEY, ModelSource, find_model
from rollyard.records.errors import OperatorError

ENDPOINT = "http://127.0.0.1:8000/v1"


def find(environ: dict[str, str] | None = None, **keys: Any) -> ModelSource:
    return find_model(EvalConfig(output_dir=Path("out"), **keys), environ or {})


def refusal(environ: dict[str, str] | None = None, **keys: Any) -> str:
    with pytest.raises(OperatorError) as raised:
        find(environ, **keys)
    return str(raised.value)


def test_a_provider_s_shorthand_gives_its_url_key_and_api() -> None:
    found = find({"OPENAI_API_KEY": "sk-1"}, model="openai/gpt-4.1-mini")
    assert (found.kind, found.name, found.base_url) == ("endpoint", "gpt-4.1-mini", "https://api.openai.com/v1")
    assert (found.api, found.api_key, found.config_paths[0].split("/")[1]) == ("responses", "sk-1", "openai_model")


def test_a_provider_with_a_slash_in_its_models_names_works() -> None:
    found = find({"OPENROUTER_API_KEY": "k"}, model="openrouter/meta-llama/llama-4")
    assert (found.name, found.api) == ("meta-llama/llama-4", "chat")


def test_the_url_of_openai_can_be_replaced_as_in_its_own_client() -> None:
    environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{ENDPOINT}/"}
    assert find(environ, model="openai/gpt-4.1").base_url == ENDPOINT


def test_a_provider_without_a_key_names_the_variable() -> None:
    assert "export OPENAI_API_KEY=" in refusal(model="openai/gpt-4.1-mini")


def test_the_key_of_a_source_is_not_in_its_repr() -> None:
    assert "sk-1" not in repr(find({"OPENAI_API_KEY": "sk-1"}, model="openai/gpt-4.1"))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "openai/gpt-oss-20b", "a", "org/deep/name"])
def test_at_an_endpoint_the_name_is_used_as_given(name: str) -> None:
    found = find(model=name, policy_base_url=f"{ENDPOINT}/")
    assert (found.kind, found.name, found.base_url, found.api, found.api_key) == (
        *("endpoint", name, ENDPOINT, "chat"),
        NO_KEY,
    )


@pytest.mark.parametrize(("model", "name"), [("vllm/Qwen/Qwen3-4B", "Qwen/Qwen3-4B"), ("vllm//models/a", "/models/a")])
def test_vllm_serves_a_hub_name_or_a_folder(model: str, name: str) -> None:
    assert (find(model=model).kind, find(model=model).name) == ("served", name)


def test_a_bare_hub_name_is_refused_with_both_ways_to_write_it() -> None:
    error = refusal(model="Qwen/Qwen3-4B")
    assert "vllm/Qwen/Qwen3-4B" in error and "policy_base_url=" in error


def test_the_name_of_a_model_server_is_refused_with_the_option_that_chooses_it() -> None:
    assert "--config-paths" in refusal(model="halving")


def test_a_misspelt_provider_is_suggested() -> None:
    assert "'openai'" in refusal(model="openia/gpt-4.1")


@pytest.mark.parametrize("model", ["vllm/a/b", "builtin"])
def test_a_model_to_start_and_an_endpoint_contradict_each_other(model: str) -> None:
    refused = refusal(model=model, policy_base_url=ENDPOINT)
    assert model in refused and "policy_base_url" in refused


def test_an_endpoint_needs_a_model_and_a_url() -> None:
    assert "needs --model" in refusal(policy_base_url=ENDPOINT)
    assert "127.0.0.1:8000" in refusal(policy_base_url="127.0.0.1:8000", model="a")


def test_without_a_model_the_configs_must_define_it() -> None:
    assert "no model given" in refusal()
    assert find(config_paths=("a.yaml",)).kind == "configs"


def test_a_running_stack_has_its_own_model() -> None:
    assert find(head="127.0.0.1:11000").kind == "running"
    assert "remove model" in refusal(head="127.0.0.1:11000", model="builtin")
