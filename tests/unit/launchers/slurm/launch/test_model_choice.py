from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.launchers.slurm.launch.launch_arguments import read_arguments
from rollyard.launchers.slurm.launch.model_choice import ModelChoice, choose_model
from rollyard.records.errors import OperatorError
from tests.support.launches import Checkpoints

DCP = ["--dcp-ckpt-path", "step_170/policy/weights/", "--dcp-config", "step_170/config.yaml"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step_170/policy/weights").mkdir(parents=True)
    (tmp_path / "step_170/config.yaml").touch()
    monkeypatch.chdir(tmp_path)


def choose(tmp_path: Path, *words: str, is_converted: bool = False) -> ModelChoice:
    checkpoints = Checkpoints(tmp_path / "cache", is_converted=is_converted)
    return choose_model(read_arguments(words, {})[0], checkpoints, "token")


def test_without_flags_the_config_chooses_the_model(tmp_path: Path) -> None:
    assert choose(tmp_path) == ModelChoice()


def test_a_checkpoint_is_converted_into_the_cache(tmp_path: Path) -> None:
    choice = choose(tmp_path, *DCP)
    assert choice.model == tmp_path / "cache" / "step_170_0123456789abcdef"
    assert choice.conversion and choice.conversion.hf_ckpt_path == choice.model
    assert choice.conversion.dcp_ckpt_path == tmp_path / "step_170/policy/weights"


def test_the_folder_of_the_conversion_can_be_given(tmp_path: Path) -> None:
    choice = choose(tmp_path, *DCP, "--hf-ckpt-path", "my model")
    assert choice.model == tmp_path / "my model"
    assert choice.conversion and choice.conversion.requested_path == choice.model


def test_a_valid_conversion_is_used_again(tmp_path: Path) -> None:
    choice = choose(tmp_path, *DCP, is_converted=True)
    assert choice.cached and choice.conversion is None and choice.model is not None


def test_a_forced_conversion_has_one_token_for_the_whole_launch(tmp_path: Path) -> None:
    """B4: under a sweep, every job deleted and converted again."""
    choice = choose(tmp_path, *DCP, "--force-conversion", is_converted=True)
    assert choice.conversion and choice.conversion.force_token == "token"


def test_a_link_and_a_trailing_slash_do_not_make_another_checkpoint(tmp_path: Path) -> None:
    """B16: paths were not resolved."""
    (tmp_path / "latest").symlink_to("step_170")
    choice = choose(
        tmp_path, "--dcp-ckpt-path", "latest/policy/../policy/weights", "--dcp-config", "latest/config.yaml"
    )
    assert choice.conversion == choose(tmp_path, *DCP).conversion


def test_a_converted_checkpoint_can_be_used_without_its_source(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").touch()
    assert choose(tmp_path, "--skip-conversion", "--hf-ckpt-path", "hf") == ModelChoice(tmp_path / "hf")


def test_without_conversion_the_cache_must_have_the_checkpoint(tmp_path: Path) -> None:
    assert choose(tmp_path, *DCP, "--skip-conversion", is_converted=True).cached
    with pytest.raises(OperatorError, match="no conversion"):
        choose(tmp_path, *DCP, "--skip-conversion")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (DCP[:2], "requires --dcp-config"),
        (DCP[2:], "--dcp-config .*--dcp-ckpt-path"),
        (["--force-conversion"], "--force-conversion has no effect"),
        (["--hf-ckpt-path", "x"], "--hf-ckpt-path requires --dcp-ckpt-path"),
        (["--skip-conversion"], "--skip-conversion requires --hf-ckpt-path"),
        (["--skip-conversion", "--hf-ckpt-path", "absent"], "has no config.json"),
        ([*DCP, "--skip-conversion", "--force-conversion"], "contradict each other"),
        (["--dcp-ckpt-path", "absent", *DCP[2:]], "absent does not"),
        (["--dcp-ckpt-path", "", *DCP[2:]], "a path is empty"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(tmp_path: Path, words: list[str], problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        choose(tmp_path, *words)
