"""Where the model of an evaluation comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.model_source import NO_KEY, ModelSource, find_model
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


def test_the_url_of_openai_can_be_replaced_as_in_its_own_client() -> None:
    environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{ENDPOINT}/"}
    assert find(environ, model="openai/gpt-4.1").base_url == ENDPOINT


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


def test_without_a_model_the_configs_must_define_it() -> None:
    assert "no model given" in refusal()
    assert find(config_paths=("a.yaml",)).kind == "configs"


def test_a_running_stack_has_its_own_model() -> None:
    assert find(head="127.0.0.1:11000").kind == "running"
    assert "remove model" in refusal(head="127.0.0.1:11000", model="builtin")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"model": "openai/gpt-4.1-mini"}, ["export OPENAI_API_KEY="]),
        ({"model": "Qwen/Qwen3-4B"}, ["vllm/Qwen/Qwen3-4B", "policy_base_url="]),
        ({"model": "halving"}, ["--config-paths"]),
        ({"model": "openia/gpt-4.1"}, ["'openai'"]),
        ({"model": "vllm/a/b", "policy_base_url": ENDPOINT}, ["vllm/a/b", "policy_base_url"]),
        ({"model": "builtin", "policy_base_url": ENDPOINT}, ["builtin", "policy_base_url"]),
        ({"policy_base_url": ENDPOINT}, ["needs --model"]),
        ({"policy_base_url": "127.0.0.1:8000", "model": "a"}, ["127.0.0.1:8000"]),
        ({"model": "vllm/"}, ["hub name"]),
    ],
)
def test_an_unclear_model_is_refused_with_what_to_write(keys: dict[str, Any], named: list[str]) -> None:
    assert all(text in refusal(**keys) for text in named)
