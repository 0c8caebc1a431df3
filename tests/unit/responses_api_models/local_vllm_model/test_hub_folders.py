"""A model named as on the Hugging Face hub is found in huggingface_hub's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.responses_api_models.local_vllm_model.app import snapshot


@pytest.mark.parametrize(
    ("variable", "subfolder"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]
)
def test_a_downloaded_model_is_found_by_branch_and_by_commit(tmp_path: Path, variable: str, subfolder: str) -> None:
    cached = tmp_path / subfolder / "models--Qwen--Qwen3-4B"
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    environ = {variable: str(tmp_path)}
    assert (
        snapshot("Qwen/Qwen3-4B", "main", environ)
        == snapshot("Qwen/Qwen3-4B", "abc", environ)
        == cached / "snapshots/abc"
    )
    assert snapshot("Qwen/Qwen3-4B", "other", environ) is None
    assert snapshot("Qwen/Qwen3-8B", "main", environ) is None
