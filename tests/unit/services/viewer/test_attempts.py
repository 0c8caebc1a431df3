from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.services.viewer.index import failed_attempts
from rollyard.services.viewer.index.failed_attempts import AttemptFile

ROW = {"_ng_task_index": 3, "_ng_rollout_index": 1, "failure_kind": "timeout", "server": "world", "detail": "late"}


def append(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(lines)


def test_attempts_are_seen_as_they_are_written_and_a_torn_line_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x_failures.jsonl"
    file = AttemptFile(path)
    assert not file.advance()
    line = orjson.dumps(ROW) + b"\n"
    append(path, line, line[:20])
    assert file.advance() and len(file.of(3, 1)) == 1
    assert not file.advance()
    append(path, line[20:])
    assert file.advance()
    assert [(one.kind, one.server, one.detail) for one in file.of(3, 1)] == [("timeout", "world", "late")] * 2
    assert file.of(3, 2) == []


def test_lines_that_are_no_attempts_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x_failures.jsonl"
    append(path, b"nonsense\n", b"[1]\n", b'{"_ng_task_index": "3"}\n', orjson.dumps(ROW) + b"\n")
    file = AttemptFile(path)
    file.advance()
    assert len(file.failed.task) == 1


def test_a_long_file_is_read_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_attempts, "_STEP", 300)
    path = tmp_path / "x_failures.jsonl"
    append(path, *[orjson.dumps(ROW) + b"\n"] * 20)
    file, steps = AttemptFile(path), 1
    file.advance()
    while file.unread_bytes:
        file.advance()
        steps += 1
    assert (len(file.of(3, 1)), steps > 3) == (20, True)


def test_a_file_that_was_moved_away_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "x_failures.jsonl"
    append(path, orjson.dumps(ROW) + b"\n")
    file = AttemptFile(path)
    file.advance()
    path.unlink()
    assert file.advance() and file.of(3, 1) == []
