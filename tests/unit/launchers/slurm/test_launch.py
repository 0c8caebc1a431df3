"""The flags, and the folder of all launches."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rollyard.launchers.slurm.launch import launch_root, make_launch_root, read_arguments
from rollyard.records.errors import OperatorError

ENVIRON = {"LOG": "/logs", "ACCOUNT": "team", "CON": "/images"}


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        # As in the original launcher; a container is only used if it is asked for.
        ([], {}, {"time": "2:0:0", "partition": "batch", "account": "default", "jobname": "eval", "container": None}),
        ([], {}, {**dict.fromkeys(("nodes", "gpus", "config", "sweep")), "log_root": Path("/tmp/nemo-rl")}),
        ([], ENVIRON, {"account": "team", "log_root": Path("/logs/nemo-rl"), "mounts": ("/lustre:/lustre",)}),
        (["--container-runtime", "pyxis"], ENVIRON, {"container": "/images/nemo_rl_base.sqsh"}),
        (["--account", "mine"], ENVIRON, {"account": "mine"}),
        (["--container", "i", "--mounts", "/a:/b,/c"], {}, {"container_runtime": "pyxis", "mounts": ("/a:/b", "/c")}),
        (["--sbatch-arg=--qos=high", "--sbatch-arg=--wckey=a"], {}, {"sbatch_args": ("--qos=high", "--wckey=a")}),
        (["--nodes", "2", "a.b=1", "--gpus", "4", "c=x y", "--dry"], {}, {"nodes": 2, "gpus": 4, "dry": True}),
    ],
)
def test_options_come_from_flags_then_variables_then_defaults(
    words: list[str], environ: dict[str, str], expected: dict[str, object]
) -> None:
    options, overrides = read_arguments(words, environ)
    assert {name: getattr(options, name) for name in expected} == expected
    assert [(one.key, one.value) for one in overrides] == ([("a.b", 1), ("c", "x y")] if "a.b=1" in words else [])


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


def test_a_launch_folder_of_another_user_or_a_link_in_a_shared_folder_is_refused(
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
    monkeypatch.undo()
    (tmp_path / "nemo-rl").rmdir()
    (tmp_path / "nemo-rl").symlink_to(tmp_path)
    with pytest.raises(OperatorError, match=r"another user.*LOG"):
        launch_root({"LOG": str(tmp_path)})
