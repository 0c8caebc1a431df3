"""Tests that programs which import modules by the paths that they had before the five parts still run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from rollyard.records.data_files import IMPORT_ROOT

TABLE = IMPORT_ROOT / "rollyard" / "former_paths.txt"


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("rollyard.services.rollouts.replay", "rollyard.records.replay"),
        ("rollyard.services.errors", "rollyard.records.errors"),
        ("rollyard.resources_servers.judging.settings", "rollyard.resources_servers.judge"),
        ("rollyard.services.metrics.loader.load_run", "rollyard.analysis.metrics.load"),
        ("rollyard.services.training.rlvr.rlvr_config", "rollyard.training.rlvr"),
        ("rollyard.services.evaluation.headline", "rollyard.launchers.evaluation.headline"),
    ],
)
def test_a_former_path_gives_the_module_of_today_with_a_warning(former: str, now: str) -> None:
    with pytest.warns(DeprecationWarning, match=now):
        module = importlib.import_module(former)
    assert module is importlib.import_module(now)
    assert module.__spec__ is not None and module.__spec__.name == now


def test_every_former_path_gives_a_module_that_exists() -> None:
    for line in TABLE.read_text().splitlines():
        now, *formers = line.replace(":", "").split()
        found = importlib.util.find_spec(f"rollyard.{now}")
        assert found is not None, now
        for former in formers:
            spec = importlib.util.find_spec(f"rollyard.{former}")
            assert spec is not None and spec.origin in (found.origin, None), former  # None: an empty package


def test_a_module_that_never_existed_is_missed_under_the_name_that_was_asked_for() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"rollyard\.services\.nothing"):
        importlib.import_module("rollyard.services.nothing")


def test_a_command_runs_under_the_former_path_of_its_module() -> None:
    command = [sys.executable, "-m", "rollyard.services.launchers.conversion", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--dcp-ckpt-path" in done.stdout
