"""Names and places of conversions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollyard.launchers.conversion.paths import cache_root, cached_path, identifier, resolve

KEY = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("/results/grpo/step_170/policy/weights", "step_170"),
        ("/results/grpo/final/actor", "final"),
        ("/results/a run/my best: step.5/weights", "my_best_step_5"),
        ("/results/$(touch x)\n'q'/weights", "touch_x_q"),
        ("/weights/policy", ""),
        ("/", ""),
        ("/results/" + "x" * 300, "x" * 64),
    ],
)
def test_the_identifier_is_the_last_specific_folder_without_unsafe_characters(checkpoint: str, name: str) -> None:
    assert identifier(Path(checkpoint)) == name


def test_a_conversion_has_the_identifier_and_16_digits_of_the_key() -> None:
    root = cache_root({"LOG": "/lustre/me"})
    assert cached_path(root, Path("/r/step_170/weights"), KEY) == Path(
        "/lustre/me/nemo-rl/hf_eval_checkpoints/step_170_0123456789abcdef"
    )
    assert cached_path(root, Path("/weights"), KEY).name == "0123456789abcdef"


def test_log_defaults_to_tmp() -> None:
    assert cache_root({}) == Path(os.path.realpath("/tmp")) / "nemo-rl/hf_eval_checkpoints"


def test_a_path_is_resolved_whatever_its_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step_1").mkdir()
    (tmp_path / "latest").symlink_to("step_1")
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path)}
    written = ["~/latest", "~/step_1/", "latest/", "./step_1/../latest", f"{tmp_path}//latest"]
    assert {resolve(path, environ) for path in written} == {tmp_path / "step_1"}
