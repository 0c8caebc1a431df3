"""The command line and the environment of `vllm serve`, and what is refused before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.pipeline.identity import fingerprint
from rollyard.launchers.evaluation.pipeline.vllm_command import (
    check_vllm,
    find_vllm,
    serve_arguments,
    serve_environment,
)
from rollyard.records.errors import OperatorError

ODD = "a $(touch x) 'b' \"c\"\nd"


def config(model: str = "vllm/Qwen/Qwen3-4B", **vllm: Any) -> EvalConfig:
    return EvalConfig.model_validate({"model": model, "vllm": vllm, "output_dir": "out"})


def refusal(found: EvalConfig, here: Path, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(OperatorError) as raised:
        check_vllm(found, here, environ or {})
    return str(raised.value)


def test_the_seed_s_command_line_is_built(tmp_path: Path) -> None:
    found = config(max_model_len=8192, trust_remote_code=True, host="0.0.0.0", args=["--seed", "1"])
    arguments = serve_arguments(found, ("vllm",), "Qwen/Qwen3-4B", 10240, ray=False, here=tmp_path)
    assert " ".join(arguments) == (
        "vllm serve Qwen/Qwen3-4B --served-model-name Qwen/Qwen3-4B --host 0.0.0.0 --port 10240 --dtype auto "
        "--tensor-parallel-size 1 --gpu-memory-utilization 0.85 --max-model-len 8192 --enable-auto-tool-choice "
        "--tool-call-parser hermes --trust-remote-code --disable-uvicorn-access-log --seed 1"
    )


def test_several_gpus_with_ray(tmp_path: Path) -> None:
    arguments = serve_arguments(config(tensor_parallel_size=4), ("vllm",), "m", 1, ray=True, here=tmp_path)
    assert "--tensor-parallel-size 4" in " ".join(arguments)
    assert "--distributed-executor-backend ray" in " ".join(arguments)
    assert serve_environment({}, "k", "127.0.0.1:6379")["RAY_ADDRESS"] == "127.0.0.1:6379"


def test_a_value_with_quotes_and_shell_characters_arrives_as_given(tmp_path: Path) -> None:
    assert ODD in serve_arguments(config(args=["--chat-template", ODD]), ("vllm",), "m", 1, ray=False, here=tmp_path)


def test_secrets_are_passed_in_variables_and_foreign_ones_are_not_passed(tmp_path: Path) -> None:
    environ = {"HF_TOKEN": "h", "ROLLYARD_TOKEN": "r", "policy_api_key": "p", "VLLM_SERVER_DEV_MODE": "1"}
    variables = serve_environment(environ, "the key", None)
    assert (variables["VLLM_API_KEY"], variables["HF_TOKEN"]) == ("the key", "h")
    assert not {"ROLLYARD_TOKEN", "policy_api_key", "VLLM_SERVER_DEV_MODE"} & variables.keys()
    for flag, instead in (("--api-key", "policy_api_key"), ("--hf-token", "HF_TOKEN"), ("--port", "vllm.port")):
        assert instead in refusal(config(args=[flag, "x"]), tmp_path)
        assert instead in refusal(config(args=[f"{flag}=x"]), tmp_path)


@pytest.mark.parametrize("model", ["vllm/./missing", "vllm//missing", "vllm/a b/c", "vllm/$(x)/c", "vllm/name"])
def test_what_is_neither_a_folder_nor_a_hub_name_is_refused(tmp_path: Path, model: str) -> None:
    assert "hub name" in refusal(config(model), tmp_path)


def test_a_folder_needs_a_config(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert "no config.json" in refusal(config("vllm/model"), tmp_path)
    (tmp_path / "model/config.json").write_text("{}")
    assert check_vllm(config("vllm/model"), tmp_path, {}) == []
    assert serve_arguments(config("vllm/model"), ("vllm",), "m", 1, ray=False, here=tmp_path)[2] == f"{tmp_path}/model"


def test_gpus_are_counted(tmp_path: Path) -> None:
    four = config(tensor_parallel_size=2, pipeline_parallel_size=2)
    assert check_vllm(four, tmp_path, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}) == []
    assert "needs 4 GPUs" in refusal(four, tmp_path, {"CUDA_VISIBLE_DEVICES": "0,1"}).replace("would need", "needs")
    assert "has none" in refusal(four, tmp_path, {"CUDA_VISIBLE_DEVICES": ""})
    assert "has none" in refusal(four, tmp_path, {"PATH": ""})
    on_ray = four.model_copy(update={"ray_head_node_address": "10.0.0.1:6379"})
    assert check_vllm(on_ray, tmp_path, {}) == []


def test_vllm_is_searched_for_in_the_path_unless_a_command_is_given(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.touch(0o755)
    assert find_vllm(config(command=[str(program), "-x"]).vllm, {}) == (str(program), "-x")
    with pytest.raises(OperatorError, match="was not found"):
        find_vllm(config(command=["/missing/vllm"]).vllm, {})


def test_the_fingerprint_changes_with_a_tensor_in_the_middle_of_a_file(tmp_path: Path) -> None:
    file, size = tmp_path / "model.safetensors", 8 << 20
    file.write_bytes(bytes(size))
    before = fingerprint(tmp_path)
    with file.open("r+b") as opened:
        opened.seek(3 << 20)
        opened.write(b"x" * (1 << 20))
    assert fingerprint(tmp_path) != before


def test_the_fingerprint_of_a_checkpoint_changes_with_its_weights_and_not_with_its_place(tmp_path: Path) -> None:
    for name, weights in (("a", b"1" * 5_000_000), ("b", b"1" * 5_000_000), ("c", b"1" * 4_999_999 + b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    a, b, c = (fingerprint(tmp_path / name) for name in "abc")
    assert a == b != c
    (tmp_path / "a/.complete").touch()
    assert fingerprint(tmp_path / "a") == a


def test_files_of_the_trainer_that_are_written_after_the_weights_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"1")
    before = fingerprint(tmp_path)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pt", "training_args.bin", "trainer_state.json"):
        (tmp_path / name).write_bytes(b"2")
    assert fingerprint(tmp_path) == before
