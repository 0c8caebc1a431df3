"""Every command that reads rollouts opens a folder of trajectories, and prints what it prints of the rollouts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rollyard
from tests.support.commands import in_this_process
from tests.support.rollout_files import grid, write, write_failures

COMMANDS = {
    "ng_reward_profile": ["ng_reward_profile", "A"],
    "ng_compare": ["ng_compare", "A", "B"],
    "ng_gate": ["ng_gate", "A", "B"],
    "ng_notes": ["ng_notes", "A"],
    "ng_viewer": ["ng_viewer", "A", "--export", "page.html"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, solved in {"base": [0, 1, 2, 2], "trained": [2, 2, 1, 2]}.items():
        write(tmp_path / f"{name}.jsonl", grid(solved, 2))
        write_failures(tmp_path / f"{name}.jsonl", [(3, 0, "timeout")])
        assert in_this_process("ng_export", f"{name}.jsonl", capsys=capsys).status == 0
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_the_same_of_trajectories_as_of_their_rollouts(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    printed = []
    for suffix in (".jsonl", "_atif"):
        words = [{"A": f"base{suffix}", "B": f"trained{suffix}"}.get(word, word) for word in COMMANDS[command]]
        done = in_this_process(*words, capsys=capsys)
        text = re.sub(r"_atif(\.rollouts)?", "", f"{done.status}\n{done.out}{done.err}")
        text = re.sub(r"[ -]+", " ", text)  # columns are as wide as the names of the files
        printed.append(re.sub(r"[\d.]+ MB", "N MB", text))
    assert printed[0] == printed[1]


def test_python_reads_trajectories_too(here: Path) -> None:
    rewards = [row["reward"] for row in rollyard.read_rollouts("base_atif")]
    assert rewards == [row["reward"] for row in rollyard.read_rollouts("base.jsonl")]
