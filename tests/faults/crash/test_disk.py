"""Incomplete last lines, unusual characters, two writers, a full disk: no line is lost, joined or partial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import RunError
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.rollouts.store import JsonLines, RolloutStore
from tests.support.failed_attempts import failure_row
from tests.support.stacks import keys_of, read_rows

ODD = "next line \u0085 separators \u2028 \u2029 vertical tab \u000b form feed \u000c nul \u0000 emoji \U0001f600"
LONE = rb'"half an emoji: \ud83d, and the other half: \ude00"'
"""Escapes that Python's json writes for a string cut in the middle of a pair, and that are valid JSON."""


def row(task: int, repeat: int, text: str = "") -> bytes:
    return orjson.dumps({"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": 1.0, "text": text})


def store(output: Path, identity: Json | None = None, *, resume: bool = True, overwrite: bool = False) -> RolloutStore:
    return RolloutStore(RolloutPaths(output), identity or {}, {}, resume=resume, overwrite=overwrite)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


def stored(output: Path, *rows: bytes) -> None:
    """Store these rows as the repeats of one task."""
    first = store(output)
    for repeat, line in enumerate(rows):
        first.append((0, repeat), line)
    first.close()


def read_again(output: Path) -> list[dict[str, Any]]:
    again, seen = store(output), list[dict[str, Any]]()
    again.load(lambda row: seen.append(dict(row)))
    again.close()
    return seen


def test_a_last_line_cut_at_any_byte_is_moved_and_never_appended_to(output: Path) -> None:
    whole, torn, later = row(0, 0, ODD), row(0, 1, ODD), row(0, 2, ODD)
    for cut in range(1, len(torn) + 1):
        output.write_bytes(whole + b"\n" + torn[:cut])
        lines = JsonLines(output)
        lines.append(later)
        lines.close()
        assert output.read_bytes() == whole + b"\n" + later + b"\n", cut
        assert lines.tail_file is not None
        assert lines.tail_file.read_bytes() == torn[:cut]
        lines.tail_file.unlink()


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, (3 << 20) + 17])
def test_an_incomplete_last_line_longer_than_one_read_is_moved_completely(output: Path, size: int) -> None:
    output.write_bytes(row(0, 0) + b"\n" + b"x" * size)
    lines = JsonLines(output)
    lines.close()
    assert output.read_bytes() == row(0, 0) + b"\n"
    assert lines.tail_file is not None
    assert lines.tail_file.stat().st_size == size


def test_incomplete_lines_of_two_crashes_are_both_kept(output: Path) -> None:
    for tail in (b"first", b"second"):
        with output.open("ab") as file:
            file.write(tail)
        JsonLines(output).close()
    assert sorted(path.read_bytes() for path in output.parent.glob("*torn*")) == [b"first", b"second"]


def test_an_incomplete_rollout_is_collected_again_and_the_loss_is_reported(output: Path) -> None:
    stored(output, row(0, 0), row(0, 1))
    os.truncate(output, output.stat().st_size - 5)
    again = store(output)
    again.load()
    assert (0, 0) in again.done
    assert (0, 1) not in again.done
    assert any("torn" in note for note in again.notes)
    again.append((0, 1), row(0, 1))
    again.close()
    assert keys_of(read_rows(output)) == [(0, 0), (0, 1)]


def test_unusual_characters_and_escapes_of_lone_surrogates_in_a_rollout_are_text(output: Path) -> None:
    stored(output, row(0, 0, ODD), row(0, 1)[:-1] + b',"cut":' + LONE + b"}")
    first, second = read_again(output)
    assert (first["text"], second["cut"]) == (ODD, json.loads(LONE))


def test_blank_lines_of_an_editor_are_not_rollouts(output: Path) -> None:
    stored(output, row(0, 0))
    with output.open("ab") as file:
        file.write(b"\n \n")
    assert len(read_again(output)) == 1


HOLD_FILE = """
import sys
from pathlib import Path
from typing import Any
from rollyard.services.rollouts.store import JsonLines
lines = JsonLines(Path(sys.argv[1]))
print('held', flush=True)
input()
"""


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_writer_is_refused_and_changes_nothing(output: Path, overwrite: bool) -> None:
    stored(output, row(0, 0))
    holder = [sys.executable, "-c", HOLD_FILE, str(output)]
    before = {path: path.read_bytes() for path in output.parent.iterdir()}
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="another process"):
            store(output, overwrite=overwrite)
        process.stdin.close()
    assert {path: path.read_bytes() for path in output.parent.iterdir()} == before
    store(output).close()


def test_a_writer_that_waited_through_an_overwrite_does_not_write_to_the_old_file(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writer opens the output, the first renames it and ends, then the second gets the lock."""
    store(output).close()
    output.write_bytes(row(0, 0) + b"\n")
    real_open, moved = os.open, list[int]()

    def open_then_lose_the_race(path: Path, *arguments: int) -> int:
        opened = real_open(path, *arguments)
        if not moved and Path(path) == output:
            moved.append(opened)
            store(output, overwrite=True).close()
        return opened

    monkeypatch.setattr(os, "open", open_then_lose_the_race)
    second_writer = JsonLines(output)
    second_writer.append(row(0, 1))
    second_writer.close()
    assert keys_of(read_rows(output)) == [(0, 1)]


def test_overwrite_renames_every_file_and_loses_nothing(output: Path) -> None:
    first = store(output, {"agent": "old"})
    first.append((0, 0), row(0, 0))
    first.append_failure(failure_row(task_index=1, failure_kind="bad_task"))
    first.close()
    contents_before = {path.read_bytes() for path in output.parent.iterdir()}
    for number in range(3):
        again = store(output, {"agent": f"new {number}"}, overwrite=True)
        again.load()
        assert len(again.done) == len(again.permanently_failed) == 0
        again.append((number, 0), row(number, 0))
        again.close()
    assert contents_before <= {path.read_bytes() for path in output.parent.iterdir()}
    lines = [line for path in output.parent.glob("rollouts.jsonl*") for line in read_rows(path)]
    assert keys_of(lines) == [(0, 0), (0, 0), (1, 0), (2, 0)]
