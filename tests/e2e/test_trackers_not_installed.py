from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.external.track.files import collection, track


@pytest.mark.parametrize("to", ["wandb", "mlflow"])
async def test_a_tracker_that_is_not_installed_is_named_with_what_to_install(tmp_path: Path, to: str) -> None:
    if importlib.util.find_spec(to):
        pytest.skip(f"{to} is installed")
    collection(tmp_path)
    refused = await track("+jsonl_fpath=rollouts.jsonl", f"+to={to}", cwd=tmp_path)
    assert refused.status == 2
    assert f"pip install 'rollyard[{to}]'" in refused.err
