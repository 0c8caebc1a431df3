"""The flags, and the folder of all launches."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rollyard.launchers.slurm.launch import launch_root, make_launch_root, read_arguments
from rollyard.records.errors import OperatorError


def test_the_defaults_are_those_of_the_original_launcher() -> None:
    options, overrides = read_arguments([], {})
    assert (options.time, options.partition, options.account, options.jobname) == ("2:0:0", "batch", "default", "eval")
    assert options.log_root == Path("/tmp/nemo-rl")
    assert (options.nodes, options.gpus, options.config, options.sweep) == (None,) * 4
    assert overrides == []


def test_the_variables_log_account_and_con_are_defaults() -> None:
    environ = {"LOG": "/logs", "ACCOUNT": "team", "CON": "/images"}
    options, _ = read_arguments(["--container-runtime", "pyxis"], environ)
    assert (options.account, options.log_root) == ("team", Path("/logs/nemo-rl"))
    assert (options.container, options.mounts) == ("/images/nemo_rl_base.sqsh", ("/lustre:/lustre",))
    assert read_arguments(["--account", "mine"], environ)[0].account == "mine"


def test_a_container_is_only_used_if_it_is_asked_for() -> None:
    without, _ = read_arguments([], {})
    assert (without.container, without.mounts) == (None, ("/lustre:/lustre",))
    options, _ = read_arguments(["--container", "image.sqsh", "--mounts", "/a:/b,/c:/c"], {})
    assert (options.container, options.container_runtime, options.mounts) == ("image.sqsh", "pyxis", ("/a:/b", "/c:/c"))


def test_flags_and_overrides_may_be_mixed() -> None:
    options, overrides = read_arguments(["--nodes", "2", "a.b=1", "--gpus", "4", "c=x y", "--dry"], {})
    assert (options.nodes, options.gpus, options.dry) == (2, 4, True)
    assert [(one.key, one.value) for one in overrides] == [("a.b", 1), ("c", "x y")]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--qos", "high"], "unknown flag --qos.*--sbatch-arg=--qos=high"),
        (["--gpu", "4"], "--gpu, .*'--gpus'"),
        (["--generation.temperature=1"], "write generation.temperature=1"),
        (["high"], "'high' is neither"),
        (["a b=1"], "'a b' is not a key"),
        (["=1"], "'' is not a key"),
        (["a=[1, {]"], "not valid YAML"),
        (["--nodes", "0"], "not an integer of 1 or more"),
        (["--time", "soon"], "not a time limit"),
        (["--time", "0"], "time limit of 0"),
        (["--jobname", "../x"], "name of a folder"),
        (["--launch-id", "a b"], "name of a folder"),
    ],
)
def test_an_unknown_flag_or_word_is_refused(words: list[str], problem: str) -> None:
    """B12: unknown flags became overrides, and abbreviations were accepted."""
    with pytest.raises(OperatorError, match=problem):
        read_arguments(words, {})


def test_arguments_of_sbatch_are_passed_on() -> None:
    options, _ = read_arguments(["--sbatch-arg=--qos=high", "--sbatch-arg=--exclusive"], {})
    assert options.sbatch_args == ("--qos=high", "--exclusive")


def test_a_launch_folder_of_another_user_in_a_shared_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    make_launch_root(tmp_path / "nemo-rl")
    assert stat.S_IMODE((tmp_path / "nemo-rl").stat().st_mode) == 0o700
    assert launch_root({"LOG": str(tmp_path)}) == tmp_path / "nemo-rl"
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    for use in (lambda: launch_root({"LOG": str(tmp_path)}), lambda: make_launch_root(tmp_path / "nemo-rl")):
        with pytest.raises(OperatorError, match=r"another user.*LOG"):
            use()


def test_a_link_in_a_shared_folder_is_no_launch_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "nemo-rl").symlink_to(tmp_path)
    with pytest.raises(OperatorError, match=r"another user.*LOG"):
        launch_root({"LOG": str(tmp_path)})
