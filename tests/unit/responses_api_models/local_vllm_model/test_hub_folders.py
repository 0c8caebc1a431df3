"""A model with a name on the hub is found where huggingface_hub keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.responses_api_models.local_vllm_model.hub_cache import snapshot


@pytest.mark.parametrize(
    ("variable", "under"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]
)
def test_a_downloaded_model_is_found_by_branch_and_by_commit(tmp_path: Path, variable: str, under: str) -> None:
    kept = tmp_path / under / "models--Qwen--Qwen3-4B"
    (kept / "snapshots" / "abc").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    environ = {variable: str(tmp_path)}
    assert (
        snapshot("Qwen/Qwen3-4B", "main", environ)
        == snapshot("Qwen/Qwen3-4B", "abc", environ)
        == kept / "snapshots/abc"
    )
    assert snapshot("Qwen/Qwen3-4B", "other", environ) is None
    assert snapshot("Qwen/Qwen3-8B", "main", environ) is None
