"""What the commands print: one file of tests/snapshots for each command, which `make snapshots` rewrites.

`$` starts a command line; the indented lines below it are its output, its errors (`!`) and its exit status if not 0.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from tests.support.commands import Finished, in_this_process, running_stack
from tests.support.foreign_folders import make_root, program_entry
from tests.support.rollout_files import grid, row, write, write_failures, write_manifest
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN, read_rows
from tests.support.training_runs import training_run

SNAPSHOTS = INSTALLED / "tests" / "snapshots"
COMMANDS = sorted(tomllib.loads((INSTALLED / "pyproject.toml").read_text())["project"]["scripts"])
ON_A_STACK = {"ng_collect_rollouts", "ng_regrade", "ng_status"}
"""Commands whose transcripts need a running stack."""
STARTS_NOTHING = {"ng_run", "ng_eval"}
"""Commands that start servers, whose transcripts only contain dry runs and mistakes."""
REWRITE = bool(os.environ.get("REWRITE_SNAPSHOTS"))


COLUMNS = 120
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_VARYING = (
    (re.compile(re.escape(f"rollyard {version('rollyard')}")), "rollyard VERSION"),
    (re.compile(r"(?<![\d.])20\d\d(-\d\d){2}-\d{6}\b"), "TIME"),
    (re.compile(r"(?<![\d.])( ?) *\d+(\.\d+)?( rollouts/)?( ?)s\b"), r"\1N\3\4s"),
    (re.compile(r"\brun [0-9a-f]{8}\b"), "run ID"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d{5}\b"), r"\1:PORT"),
    (re.compile(r"\(\d+\.\d MB\)"), "(N MB)"),
    (re.compile(r" +\d+%(?=( +\d+){3}\n)"), "  N%"),  # of a core
)
"""Patterns of what differs between two runs, and what is shown instead."""
_UNSET = ("LOG", "ACCOUNT", "CON", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "AWS_PROFILE", "OPENAI_API_KEY")
"""Variables that commands read, and that a test run may have."""


def rewritten(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command lines of a transcript, one after another in `folder`, and return it with what they print now."""
    parts: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            parts.append(f"{line}\n")
        elif line.startswith("$ "):
            parts.append(f"{line}\n{_printed(line[2:], folder, capsys)}\n")
        else:
            assert not line or line.startswith("  "), f"neither a comment nor a command line nor its output: {line}"
    return "".join(parts)


def _printed(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    words = shlex.split(line)
    variables = {}
    while _VARIABLE.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    done = _run(words, variables, folder, capsys)
    lines = [*_marked("    ", done.out, folder), *_marked("  ! ", done.err, folder)]
    return "".join([*lines, f"  exit status {done.status}\n" if done.status else ""])


def _run(words: list[str], variables: Mapping[str, str], folder: Path, capsys: pytest.CaptureFixture[str]) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in _UNSET:
            patch.delenv(name, raising=False)
        for name, value in {"COLUMNS": str(COLUMNS), **variables}.items():
            patch.setenv(name, value)
        return in_this_process(*words, capsys=capsys)


def _marked(mark: str, text: str, folder: Path) -> Iterator[str]:
    for found, shown in ((str(folder), "FOLDER"), (sys.executable, "PYTHON"), (str(INSTALLED), "ROLLYARD")):
        text = text.replace(found, shown)
    for pattern, shown in _VARYING:
        text = pattern.sub(shown, text)
    for line in text.splitlines():
        yield f"{mark}{line}".rstrip() + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "base.jsonl", grid([0, 1, 2, 2], 2))
    write(tmp_path / "trained.jsonl", answered(grid([2, 2, 2, 2], 2), output_tokens=12))
    write(tmp_path / "second.jsonl", grid([0, 2, 2, 1], 2)[:-1])
    write_manifest(write(tmp_path / "partial.jsonl", answered(grid([1, 0], 2), output_tokens=11)), 4, 2)
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
    write(tmp_path / "given_up.jsonl", given_up())
    make_root(tmp_path)
    (tmp_path / "nemo_gym.yaml").write_text(yaml.safe_dump({"counter": program_entry()}))
    (tmp_path / "vllm").touch(0o755)  # checks look for it without running it
    training_run(tmp_path / "training", 1)
    return tmp_path


def answered(rows: list[Json], output_tokens: int) -> list[Json]:
    """The rows with answers of another length."""
    for one in rows:
        one["response"]["usage"]["output_tokens"] = output_tokens
    return rows


def given_up() -> list[Json]:
    """Rollouts of a model that plays no move; the last one without an answer."""
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I give up."}]}
    response = {"object": "response", "status": "completed", "output": [message]}
    rows = [
        {**task, "agent_ref": {"name": AGENT}, "_ng_task_index": index, "_ng_rollout_index": 0, "reward": 1.0}
        for index, task in enumerate(read_rows(EXAMPLES))
    ]
    return [*({**one, "response": response} for one in rows[:-1]), rows[-1]]


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
