"""Checks of a training run that read the model, and start nothing; the configs of the page pass them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollyard.cli.train import heading
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.training.run_folder import settings_yaml
from rollyard.training.start_checks import TrainPlan, check
from rollyard.training.train_config import TrainConfig
from tests.support.commands import in_this_process
from tests.support.doc_pages import commands, page
from tests.support.stacks import colocated, load_config


def model_folder(folder: Path, *, tied: bool = False) -> Path:
    folder.mkdir()
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"\0" * 1024)
    (folder / "tokenizer.json").write_text("{}")
    return folder


ROWS = INSTALLED / "resources_servers/gsm8k/data/example.jsonl"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def config_of(folder: Path, **keys: Any) -> TrainConfig:
    given = {"model": "model", "environments": ["gsm8k"], "input_jsonl_fpath": str(ROWS), "output_dir": folder / "out"}
    return TrainConfig.model_validate({**given, **keys})


async def plan_of(folder: Path, environ: dict[str, str] | None = None, **keys: Any) -> TrainPlan:
    return await check(config_of(folder, **keys), environ or NO_GPU, folder)


async def refusal(folder: Path, environ: dict[str, str] | None = None, **keys: Any) -> str:
    with pytest.raises(OperatorError) as raised:
        await plan_of(folder, environ, **keys)
    return str(raised.value)


async def test_the_plan_says_what_is_trained_on_what(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    keys: dict[str, Any] = {"groups_per_step": 4, "evaluation": {"input_jsonl_fpath": str(ROWS), "limit": 2}}
    shown = heading(await plan_of(tmp_path, **keys))
    for text in ("model      model, trained on a CPU", "agent      gsm8k_agent", "4 tasks x 8 = 32 rollouts each"):
        assert text in shown
    assert "2 tasks" in shown and "10 steps" in shown
    assert not (tmp_path / "out").exists()


async def test_a_model_that_does_not_exist_or_is_not_complete_is_refused(tmp_path: Path) -> None:
    assert "hub name" in await refusal(tmp_path)
    folder = model_folder(tmp_path / "model")
    for name, expected in (
        ("tokenizer.json", "contains no tokenizer"),
        ("model.safetensors", "contains no *.safetensors"),
        ("config.json", "contains no config.json"),
    ):
        (folder / name).unlink()
        assert expected in await refusal(tmp_path)


async def test_all_weights_of_a_tied_model_cannot_be_trained_on_a_cpu(tmp_path: Path) -> None:
    model_folder(tmp_path / "model", tied=True)
    assert "tie_word_embeddings: true" in await refusal(tmp_path)
    assert await plan_of(tmp_path, optimizer={"lora": {}})  # adapters leave the head unchanged


async def test_data_agents_and_what_needs_gpus_are_checked(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    for keys, expected in (
        ({"weights": {"method": "nccl"}}, "needs GPUs"),
        ({"input_jsonl_fpath": None}, "no data given"),
        ({"input_jsonl_fpath": "rows.jsonl"}, "does not exist"),
        ({"evaluation": {"input_jsonl_fpath": "test.jsonl"}}, "evaluation.input_jsonl_fpath=test.jsonl"),
        ({"agent_name": "other_agent"}, "other_agent"),
    ):
        assert expected in await refusal(tmp_path, **keys)


async def test_a_disk_that_is_too_small_is_noticed(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).total)  # a sparse file
    assert "GiB free" in await refusal(tmp_path)


async def test_a_folder_with_another_run_is_refused_with_the_differences(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").write_text(settings_yaml(config_of(tmp_path, group_size=4)))
    assert "group_size was 4, now 8" in await refusal(tmp_path)
    assert await plan_of(tmp_path, group_size=4)


async def test_a_head_that_is_not_there_or_whose_policy_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    keys: dict[str, Any] = {"environments": []}
    assert "head=http://127.0.0.1:1" in await refusal(tmp_path, head="127.0.0.1:1", **keys)
    async with colocated(load_config(), tmp_path, token="t") as stack:
        head = stack.head_url.removeprefix("http://")
        environ = {**NO_GPU, "ROLLYARD_TOKEN": "t"}
        assert "export it as ROLLYARD_TOKEN" in await refusal(tmp_path, head=head, **keys)
        assert "policy_model cannot be trained" in await refusal(tmp_path, environ, head=head, **keys)
        error = await refusal(tmp_path, environ, head=head, policy_server="policy", **keys)
        assert "did you mean 'policy_model'" in error
    assert "remove environments" in await refusal(tmp_path, head="127.0.0.1:1")


LINES = [words for words in commands(page("training.md")) if words[0] == "ng_train"]


@pytest.mark.parametrize("words", [words for words in LINES if "--head" not in words], ids=" ".join)
def test_every_documented_line_passes_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "sokoban_policy").mkdir(parents=True)
    for name in ("gsm8k_train", "gsm8k_test", "sokoban_policy/train", "sokoban_policy/test"):
        environment = "grl_sokoban" if "/" in name else "gsm8k"
        rows = INSTALLED / "resources_servers" / environment / "data" / "example.jsonl"
        shutil.copy(rows, tmp_path / "results" / f"{name}.jsonl")
    # Stands in for the models that the configs name, one of which is on the hub.
    model_folder(tmp_path / "model")
    given = [word for word in words if word != "--dry-run"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    checked = in_this_process(*given, "model=model", "+dry_run=true", capsys=capsys)
    assert checked.status == 0, checked.err
    assert "nothing was started" in checked.out and not (tmp_path / "results" / "train_sokoban").exists()
