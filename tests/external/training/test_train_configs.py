"""The training configs of configs/ pass the checks of a dry run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollyard.records.io.search_path import INSTALLED
from tests.support.commands import in_this_process
from tests.support.doc_pages import commands, page
from tests.unit.training.run.model_folder import model_folder

ROWS = INSTALLED / "resources_servers"
LINES = [words for words in commands(page("training.md")) if words[0] == "ng_train"]


@pytest.mark.parametrize("words", [words for words in LINES if "--head" not in words], ids=" ".join)
def test_every_documented_line_passes_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "sokoban_policy").mkdir(parents=True)
    for name, environment in (
        ("gsm8k_train", "gsm8k"),
        ("gsm8k_test", "gsm8k"),
        ("sokoban_policy/train", "grl_sokoban"),
        ("sokoban_policy/test", "grl_sokoban"),
    ):
        shutil.copy(ROWS / environment / "data" / "example.jsonl", tmp_path / "results" / f"{name}.jsonl")
    # Stands in for the models that the configs name, one of which is on the hub.
    model_folder(tmp_path / "model")
    given = [word for word in words if word != "--dry-run"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    checked = in_this_process(*given, "model=model", "+dry_run=true", capsys=capsys)
    assert checked.status == 0, checked.err
    assert "nothing was started" in checked.out and not (tmp_path / "results" / "train_sokoban").exists()
