"""What the commands print: one file of tests/snapshots for each command, which `make snapshots` rewrites."""

from __future__ import annotations

import contextlib
import os
import tomllib
from pathlib import Path

import pytest
import yaml

from rollyard.records.search_path import INSTALLED
from tests.support.commands import running_stack
from tests.support.foreign_folders import make_root, program_entry
from tests.support.rollout_files import grid, row, write, write_failures, write_manifest
from tests.support.stacks import EXAMPLES, SOKOBAN
from tests.support.training_runs import training_run
from tests.support.transcripts import rewritten

SNAPSHOTS = INSTALLED / "tests" / "snapshots"
COMMANDS = sorted(tomllib.loads((INSTALLED / "pyproject.toml").read_text())["project"]["scripts"])
ON_A_STACK = {"ng_collect_rollouts", "ng_status"}
"""Commands whose transcripts need a running stack."""
STARTS_NOTHING = {"ng_run", "ng_eval"}
"""Commands that start servers, whose transcripts only contain dry runs and mistakes."""
REWRITE = bool(os.environ.get("REWRITE_SNAPSHOTS"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "base.jsonl", grid([0, 1, 2, 2], 2))
    write(tmp_path / "trained.jsonl", grid([2, 2, 2, 2], 2))
    write_manifest(write(tmp_path / "partial.jsonl", grid([1, 0], 2)), 4, 2)
    write_manifest(write(tmp_path / "shared.shard-1-of-2.jsonl", grid([1, 0], 2)[:3]), 2, 2)
    write_failures(tmp_path / "partial.jsonl", [(2, 0, "upstream_refused"), (3, 0, "session_lost")])
    write(tmp_path / "twice.jsonl", grid([1], 1) * 2)
    write(tmp_path / "other_tasks.jsonl", [row(0, 0, 1.0) | {"responses_create_params": {"input": "else"}}])
    write(tmp_path / "empty.jsonl", [])
    write(tmp_path / "questions.jsonl", [{"question": f"{n} + 1?", "expected_answer": str(n + 1)} for n in range(3)])
    (tmp_path / "torn.jsonl").write_text('{"question": "1 + 1?"}\n{"quest\n')
    (tmp_path / "rollouts.jsonl.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "no_rollouts").mkdir()
    (tmp_path / "rooms.jsonl").write_bytes(EXAMPLES.read_bytes())
    make_root(tmp_path)
    (tmp_path / "nemo_gym.yaml").write_text(yaml.safe_dump({"counter": program_entry()}))
    (tmp_path / "vllm").touch(0o755)  # checks look for it without running it
    training_run(tmp_path / "training", 1)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_its_snapshot_shows(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    snapshot = SNAPSHOTS / f"{name}.txt"
    with running_stack(configs=SOKOBAN, folder=folder) if name in ON_A_STACK else contextlib.nullcontext():
        found = rewritten(snapshot.read_text(), folder, capsys)
    assert name not in STARTS_NOTHING or not (folder / ".rollyard").exists()
    if REWRITE:
        snapshot.write_text(found)
    assert found == snapshot.read_text(), "if this is what it should print: make snapshots"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_snapshot_shows_the_help_and_what_a_mistake_prints(name: str) -> None:
    text = (SNAPSHOTS / f"{name}.txt").read_text()
    lines = [line for line in text.splitlines() if line.startswith("$ ")]
    assert f"$ {name} --help" in lines
    assert all(f" {name}" in line for line in lines) and "  exit status 2" in text.splitlines()


def test_every_snapshot_is_of_a_command() -> None:
    assert sorted(path.stem for path in SNAPSHOTS.iterdir()) == COMMANDS
