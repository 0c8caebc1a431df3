"""Where the model of an evaluation comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.model_source import NO_KEY, ModelSource, find_model
from rollyard.records.errors import OperatorError

ENDPOINT = "http://127.0.0.1:8000/v1"
HEAD = "127.0.0.1:11000"


def find(environ: dict[str, str] | None = None, **keys: Any) -> ModelSource:
    return find_model(EvalConfig(output_dir=Path("out"), **keys), environ or {})


def test_a_provider_s_shorthand_gives_its_url_key_and_api() -> None:
    found = find({"OPENAI_API_KEY": "sk-1"}, model="openai/gpt-4.1-mini")
    assert (found.kind, found.name, found.base_url) == ("endpoint", "gpt-4.1-mini", "https://api.openai.com/v1")
    assert (found.api, found.api_key, found.config_paths[0].split("/")[1]) == ("responses", "sk-1", "openai_model")
    assert "sk-1" not in repr(found)
    replaced = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{ENDPOINT}/"}  # as in OpenAI's own client
    assert find(replaced, model="openai/gpt-4.1").base_url == ENDPOINT


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "openai/gpt-oss-20b", "a", "org/deep/name"])
def test_at_an_endpoint_the_name_is_used_as_given(name: str) -> None:
    found = find(model=name, policy_base_url=f"{ENDPOINT}/")
    assert (found.kind, found.name, found.base_url) == ("endpoint", name, ENDPOINT)
    assert (found.api, found.api_key) == ("chat", NO_KEY)


@pytest.mark.parametrize(
    ("keys", "kind", "name"),
    [
        ({"model": "vllm/Qwen/Qwen3-4B"}, "served", "Qwen/Qwen3-4B"),
        ({"model": "vllm//models/a"}, "served", "/models/a"),
        ({"config_paths": ("a.yaml",)}, "configs", ""),
        ({"head": HEAD}, "running", ""),
    ],
)
def test_the_model_is_served_or_that_of_the_configs_or_of_a_running_stack(
    keys: dict[str, Any], kind: str, name: str
) -> None:
    assert (find(**keys).kind, find(**keys).name) == (kind, name)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, ["no model given"]),
        ({"head": HEAD, "model": "builtin"}, ["remove model"]),
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
    with pytest.raises(OperatorError) as raised:
        find(**keys)
    assert all(text in str(raised.value) for text in named)
