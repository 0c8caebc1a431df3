"""Tests that programs which import modules by the paths that they had before the five parts still run."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("rollyard.services.rollouts.replay", "rollyard.records.rollouts.replay"),
        ("rollyard.services.errors", "rollyard.records.errors"),
        ("rollyard.services.metrics.profile", "rollyard.analysis.metrics.profile"),
        ("rollyard.services.training.endings", "rollyard.training.endings"),
        ("rollyard.services.evaluation.headline", "rollyard.launchers.evaluation.headline"),
    ],
)
def test_a_former_path_gives_the_same_module_with_a_warning(former: str, now: str) -> None:
    with pytest.warns(DeprecationWarning, match=now):
        module = importlib.import_module(former)
    assert module is importlib.import_module(now)
    assert module.__spec__ is not None and module.__spec__.name == now


def test_a_module_that_never_existed_is_missed_under_the_name_that_was_asked_for() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"rollyard\.services\.nothing"):
        importlib.import_module("rollyard.services.nothing")


def test_a_command_runs_under_the_former_path_of_its_module() -> None:
    command = [sys.executable, "-m", "rollyard.services.launchers.conversion", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--dcp-ckpt-path" in done.stdout
