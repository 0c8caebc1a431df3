"""The index of a rollout file: built, extended, saved, and rebuilt as soon as it is out of date."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from rollyard.analysis.metrics.columns import FLOATS, INTS
from rollyard.analysis.viewer.growing_index import FollowedFile
from rollyard.records.types import Json
from tests.support.rollout_files import grid, random_rows, row, solved, write


def read_through(path: Path, *, part: int = 2000, worth_saving: int = 0) -> FollowedFile:
    file = FollowedFile(path, worth_saving=worth_saving, part=part)
    advance(file)
    return file


def advance(file: FollowedFile) -> None:
    file.advance()
    while file.unread_bytes or not file.is_sorted:
        file.advance()


def rewards(file: FollowedFile) -> list[tuple[int, int, float]]:
    columns = file.snapshot.columns
    return list(zip(columns.task.tolist(), columns.repeat.tolist(), columns.reward.tolist(), strict=True))


def append(path: Path, rows: list[Json], tail: bytes = b"") -> None:
    with path.open("ab") as file:
        file.write(b"".join(orjson.dumps(row) + b"\n" for row in rows) + tail)


def change_unnoticeably(path: Path, old: bytes, new: bytes) -> None:
    """Change the content but neither the size nor the time of the file."""
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(old, new))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_the_part_size_does_not_change_the_index(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(5, 4))
    in_parts, at_once = read_through(path, part=500).snapshot, read_through(path, part=1 << 20).snapshot
    for name in (*INTS, *FLOATS):
        assert getattr(in_parts.columns, name).tolist() == pytest.approx(
            getattr(at_once.columns, name).tolist(), nan_ok=True
        )
    assert in_parts.end == at_once.end == path.stat().st_size


def test_appended_rows_are_indexed_at_the_next_advance(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    file = read_through(path)
    append(path, grid([0, 1], 2)[2:])
    advance(file)
    assert [(task, repeat) for task, repeat, _ in rewards(file)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert file.generation == 0


def test_an_incomplete_last_line_is_not_indexed_until_complete(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    line = orjson.dumps(solved(1, 0, True)) + b"\n"
    append(path, [], line[:50])
    file = read_through(path)
    assert (len(file.snapshot.columns), file.size - file.snapshot.end) == (1, 50)
    append(path, [], line[50:])
    advance(file)
    assert (len(file.snapshot.columns), file.size - file.snapshot.end) == (2, 0)


def test_an_incomplete_line_longer_than_a_part_does_not_block_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1), tail=b'{"x": "' + b"y" * 10_000)
    file = read_through(path, part=1000)
    assert (len(file.snapshot.columns), file.unread_bytes, file.at_end) == (1, 0, True)


def test_a_replaced_file_is_reread(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    file = read_through(path)
    write(tmp_path / "other.jsonl", grid([0, 0, 0], 2)).rename(path)
    advance(file)
    assert [reward for *_, reward in rewards(file)] == [0.0] * 6
    assert file.generation == 1


def test_a_shortened_file_is_reread(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([2], 2))
    file = read_through(path)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    advance(file)
    assert len(file.snapshot.columns) == 1


def test_a_row_that_was_edited_in_place_is_reread(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0), row(0, 1, 1.0)])
    file = read_through(path)
    path.write_bytes(path.read_bytes().replace(b'"reward":1.0', b'"reward":0.5', 1))
    os.utime(path, ns=(1, 1))
    advance(file)
    assert rewards(file) == [(0, 0, 0.5), (0, 1, 1.0)]


def test_a_row_that_was_edited_before_an_append_is_reread(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0)])
    file = read_through(path)
    path.write_bytes(path.read_bytes().replace(b'"reward":1.0', b'"reward":0.5'))
    append(path, [row(0, 1, 2.0)])
    advance(file)
    assert rewards(file) == [(0, 0, 0.5), (0, 1, 2.0)]


def test_a_saved_index_opens_without_reading_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(5, 4))
    before = rewards(read_through(path))
    assert (tmp_path / "x_index.npz").is_file()
    change_unnoticeably(path, b'"reward":', b'"REWARD":')
    reopened = FollowedFile(path, worth_saving=0)
    reopened.advance()
    assert (rewards(reopened), reopened.at_end) == (before, True)


def test_a_saved_index_is_extended_by_appended_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    read_through(path)
    append(path, grid([0, 1], 2)[2:])
    assert rewards(read_through(path)) == rewards(read_through(path, worth_saving=1 << 40))


def test_a_saved_index_keeps_all_its_data(tmp_path: Path) -> None:
    rows = [
        *random_rows(3, 3),
        row(7, 0, None, failure_kind="timeout"),
        row(7, 1, 1.0, mask_sample=True),
        *random_rows(1, 1),
    ]
    path = write(tmp_path / "x.jsonl", rows, tail=b"nonsense\n")
    first, reopened = read_through(path), read_through(path)
    assert (reopened.snapshot.error, reopened.snapshot.end) == (first.snapshot.error, first.snapshot.end)
    for saved, loaded in ((first.snapshot.columns, reopened.snapshot.columns),):
        assert saved.end.names == loaded.end.names
        assert saved.stages.keys() == loaded.stages.keys()
        assert saved.unmeasured.kind.names == loaded.unmeasured.kind.names == ("timeout", "masked")
        assert saved.unmeasured.offset.tolist() == loaded.unmeasured.offset.tolist()


def test_an_index_of_another_file_is_not_used(tmp_path: Path) -> None:
    read_through(write(tmp_path / "x.jsonl", grid([1], 2)))
    path = write(tmp_path / "x.jsonl", grid([0, 0, 0], 2))
    assert len(read_through(path).snapshot.columns) == 6


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a zip", None])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, damage: bytes | None) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    expected = rewards(read_through(path))
    index = tmp_path / "x_index.npz"
    index.write_bytes(index.read_bytes()[:-200] if damage is None else damage)
    assert rewards(read_through(path)) == expected
    assert rewards(read_through(path)) == expected


def test_an_index_that_cannot_be_saved_stays_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    (tmp_path / "x_index.npz").mkdir()
    file = read_through(path)
    assert (len(file.snapshot.columns), file.error) == (2, "")
    assert sorted(child.name for child in tmp_path.iterdir()) == ["x.jsonl", "x_index.npz"]


def test_the_index_of_a_small_file_is_not_saved(tmp_path: Path) -> None:
    file = FollowedFile(write(tmp_path / "x.jsonl", grid([1], 2)))
    advance(file)
    file.close()
    assert [child.name for child in tmp_path.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize(("first", "reason"), [(b"[1]\n", "is a list"), (b"broken\n", "is not JSON")])
def test_lines_that_are_not_rollouts_are_skipped_and_reported(tmp_path: Path, first: bytes, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    good = orjson.dumps(solved(0, 0, True)) + b"\n"
    path.write_bytes(first + good + b"{broken\n" + b'{"reward": 1}\n')
    file = read_through(path)
    assert len(file.snapshot.columns) == 1
    assert file.snapshot.error.startswith("3 lines ")
    assert f"(at byte 0) {reason}" in file.snapshot.error


def test_the_first_of_duplicate_rollouts_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0), row(1, 0, 2.0), row(0, 0, 3.0)])
    file = read_through(path, part=100)
    assert rewards(file) == [(0, 0, 1.0), (1, 0, 2.0)]
    assert "duplicate" in file.snapshot.error


def test_rows_without_a_task_index_are_numbered_by_position(tmp_path: Path) -> None:
    rows = [row(0, 0, reward) for reward in (1.0, None, 2.0, 3.0)]
    for rollout in rows:
        del rollout["_ng_task_index"], rollout["_ng_rollout_index"]
    path = write(tmp_path / "x.jsonl", rows[:3])
    file = read_through(path, part=100)
    append(path, rows[3:])
    advance(file)
    assert rewards(file) == [(0, 0, 1.0), (2, 0, 2.0), (3, 0, 3.0)]
    assert file.snapshot.columns.unmeasured.task.tolist() == [1]


def test_a_file_that_disappears_for_a_while_is_reread_when_it_returns(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    file = read_through(path)
    path.rename(tmp_path / "away")
    advance(file)
    assert "No such file" in file.error
    (tmp_path / "away").rename(path)
    advance(file)
    assert (file.error, len(file.snapshot.columns)) == ("", 2)


def test_a_file_without_rollouts_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("level,reward\n1,0.5\n")
    file = read_through(path)
    assert (len(file.snapshot.columns), file.at_end) == (0, True)
    assert file.snapshot.error.startswith("2 lines ")


def test_a_file_that_starts_with_a_partial_line_is_read_once_the_line_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    line = orjson.dumps(solved(4, 0, True)) + b"\n"
    path.write_bytes(line[:30])
    file = read_through(path)
    assert (len(file.snapshot.columns), file.snapshot.error) == (0, "")
    append(path, [], line[30:])
    advance(file)
    assert rewards(file) == [(4, 0, 1.0)]
