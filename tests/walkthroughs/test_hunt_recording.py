"""examples/hunt/record.py records the exploit again that the committed files contain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_hunt import HUNT, RECORDED, ranked
from tests.support.commands import command_environ
from tests.support.waiting import deadline_s


@pytest.fixture
def recorded_again(tmp_path: Path) -> Path:
    program = [sys.executable, str(HUNT / "record.py"), str(tmp_path)]
    subprocess.run(program, check=True, env=command_environ(), cwd=tmp_path, timeout=deadline_s())
    return tmp_path


def test_the_program_records_the_same_exploit_again(recorded_again: Path) -> None:
    again, committed = ranked(recorded_again / "late.jsonl"), ranked(RECORDED / "late.jsonl")
    assert [(one.kind, one.count) for one in again] == [(one.kind, one.count) for one in committed]
