from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.analysis.viewer import growing_index
from rollyard.analysis.viewer.growing_index import AttemptFile

ROW = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "failure_kind": "timeout",
    "server": "environment",
    "detail": "late",
}
LINE = orjson.dumps(ROW) + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x_failures.jsonl"


def append(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(lines)


def test_attempts_are_read_as_they_are_written_and_a_partial_line_once_complete(path: Path) -> None:
    file = AttemptFile(path)
    assert not file.advance()
    append(path, LINE, LINE[:20])
    assert file.advance() and len(file.of(3, 1)) == 1
    assert not file.advance()
    append(path, LINE[20:])
    assert file.advance()
    found = [(attempt.kind, attempt.server, attempt.detail) for attempt in file.of(3, 1)]
    assert found == [("timeout", "environment", "late")] * 2 and file.of(3, 2) == []


def test_invalid_lines_are_skipped(path: Path) -> None:
    append(path, b"nonsense\n", b"[1]\n", b'{"_ng_task_index": "3"}\n', LINE)
    file = AttemptFile(path)
    file.advance()
    assert len(file.failed.task) == 1


def test_a_long_file_is_read_in_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_index, "_STEP", 300)
    append(path, *[LINE] * 20)
    file, steps = AttemptFile(path), 1
    file.advance()
    while file.unread_bytes:
        file.advance()
        steps += 1
    assert (len(file.of(3, 1)), steps > 3) == (20, True)


def test_the_attempts_of_a_removed_file_are_dropped(path: Path) -> None:
    append(path, LINE)
    file = AttemptFile(path)
    file.advance()
    path.unlink()
    assert file.advance() and file.of(3, 1) == []
