"""How a model is served: the settings of its local_vllm_model, what is refused, and what identifies its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_state import EvalFolder
from rollyard.launchers.evaluation.model_source import check_served, find_model, find_vllm, local_vllm_model
from rollyard.launchers.evaluation.plan import check, comparable_settings, fingerprint, run_command, update_manifest
from rollyard.records.errors import OperatorError
from rollyard.records.manifest import Manifest, encode_manifest
from rollyard.records.types import Json
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings, serve_arguments

ODD = "a $(touch x) 'b' \"c\"\nd"


def config(model: str = "vllm/Qwen/Qwen3-4B", **vllm: Any) -> EvalConfig:
    return EvalConfig.model_validate({"model": model, "vllm": vllm, "output_dir": "out"})


def served(found: EvalConfig, environ: dict[str, str] | None = None, ray: str | None = None) -> LocalVllmModelSettings:
    source, here = find_model(found, environ or {}), Path("/nowhere")
    given = local_vllm_model(found, source, here, command=("vllm",), log=here / "vllm_server.log", ray=ray)
    return LocalVllmModelSettings.model_validate(given)


def refusal(found: EvalConfig, here: Path) -> str:
    with pytest.raises(OperatorError) as raised:
        check_served(found, here)
    return str(raised.value)


def test_the_seed_s_command_line_is_built_and_several_gpus_may_use_a_ray_cluster() -> None:
    found = served(config(max_model_len=8192, trust_remote_code=True, host="0.0.0.0", args=["--seed", "1"]))
    assert " ".join(serve_arguments(found, 10240)) == (
        "vllm serve Qwen/Qwen3-4B --served-model-name Qwen/Qwen3-4B --host 0.0.0.0 --port 10240 "
        "--disable-uvicorn-access-log --enable-auto-tool-choice --dtype auto --gpu-memory-utilization 0.85 "
        "--max-model-len 8192 --tool-call-parser hermes --trust-remote-code --seed 1"
    )
    line = " ".join(serve_arguments(served(config(tensor_parallel_size=4), ray="127.0.0.1:6379"), 1))
    assert "--tensor-parallel-size 4" in line and "--distributed-executor-backend ray" in line


async def test_a_value_with_quotes_and_shell_characters_arrives_as_given(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.touch(0o755)
    given = config(command=[str(program)], args=["--chat-template", ODD])
    found = given.model_copy(update={"environments": ["gsm8k"], "output_dir": tmp_path / "out"})
    plan = await check(found, {}, tmp_path)
    assert ODD in serve_arguments(LocalVllmModelSettings.model_validate(plan.served), 1)
    assert plan.run_config is not None and "policy_model" in plan.run_config.identity()
    assert any("local_vllm_model" in word for word in run_command(plan))


def test_an_engine_needs_a_key_that_no_command_line_shows() -> None:
    assert served(config()).api_key is None  # a random one
    chosen = served(config(port=8000)).api_key
    assert chosen is not None and chosen.get_secret_value() == ""
    assert served(config(port=8000, host="0.0.0.0")).api_key is None
    for found, environ in (
        (config().model_copy(update={"policy_api_key": "the key"}), {}),
        (config(port=8000), {"VLLM_API_KEY": "the key"}),
    ):
        key = served(found, environ).api_key
        assert key is not None and key.get_secret_value().startswith("${oc.env:")
        assert find_model(found, environ).api_key == "the key"


def test_flags_that_are_settings_of_ng_eval_or_secrets_are_refused(tmp_path: Path) -> None:
    for flag, instead in (("--api-key", "policy_api_key"), ("--hf-token", "HF_TOKEN"), ("--port", "vllm.port")):
        assert instead in refusal(config(args=[flag, "x"]), tmp_path)
        assert instead in refusal(config(args=[f"{flag}=x"]), tmp_path)


@pytest.mark.parametrize("model", ["vllm/./missing", "vllm//missing", "vllm/a b/c", "vllm/$(x)/c", "vllm/name"])
def test_what_is_neither_a_folder_with_a_config_nor_a_hub_name_is_refused(tmp_path: Path, model: str) -> None:
    assert "hub name" in refusal(config(model), tmp_path)
    (tmp_path / "model").mkdir()
    assert "no config.json" in refusal(config("vllm/model"), tmp_path)
    (tmp_path / "model/config.json").write_text("{}")
    check_served(config("vllm/model"), tmp_path)


def test_vllm_is_searched_for_in_the_path_unless_a_command_is_given(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.touch(0o755)
    assert find_vllm(config(command=[str(program), "-x"]).vllm, {}) == (str(program), "-x")
    with pytest.raises(OperatorError, match="was not found"):
        find_vllm(config(command=["/missing/vllm"]).vllm, {})


def test_the_fingerprint_changes_with_the_weights_and_not_with_their_place_or_files_of_the_trainer(
    tmp_path: Path,
) -> None:
    size, trainer = (
        8 << 20,
        ("optimizer.pt", "scheduler.pt", "rng_state_0.pt", "training_args.bin", "trainer_state.json"),
    )
    prints = []
    for name, at in (("a", None), ("copy", None), ("end", size - 1), ("middle", 3 << 20)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        content = bytes(size) if at is None else (bytes(at) + b"x" * (1 << 20) + bytes(size))[:size]
        (folder / "model.safetensors").write_bytes(content)
        prints.append(fingerprint(folder))
    assert prints[0] == prints[1] and len(set(prints)) == 3
    for later in (*trainer, ".complete"):
        (tmp_path / "a" / later).write_bytes(b"2")
    assert fingerprint(tmp_path / "a") == prints[0]


def test_an_output_of_the_version_that_started_vllm_itself_is_continued(tmp_path: Path) -> None:
    """Its manifest has the settings of a vllm_model; those that only the user can set are still compared."""
    folder = EvalFolder(tmp_path)
    kept: Json = {"extra_body": {"top_k": 3}}
    before: Json = {"implementation": "responses_api_models/vllm_model", "entrypoint": "app.py", "model": "m", **kept}
    before |= {"return_token_id_information": False, "uses_reasoning_parser": True}
    now: Json = {"implementation": "responses_api_models/local_vllm_model", "model": "/m", "dtype": "auto", **kept}
    identity: Json = {"num_repeats": 2, "settings": {"policy_model": before, "agent": {"max_steps": 3}}}
    assert comparable_settings(identity)["settings"]["policy_model"] == kept
    manifest = Manifest(identity=identity, versions={}, created=1.0)
    folder.rollouts.manifest.write_bytes(encode_manifest(manifest))
    update_manifest(folder, {"policy_model": now, "another": {}})
    found = Manifest.model_validate_json(folder.rollouts.manifest.read_bytes())
    assert found.identity == {"num_repeats": 2, "settings": {"policy_model": now, "agent": {"max_steps": 3}}}
