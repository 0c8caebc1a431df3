"""The index of a rollout file, built, saved and rebuilt, and of several files in the background, by processes."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from rollyard.analysis.metrics.columns import FLOATS, INTS
from rollyard.analysis.viewer.growing_index import FollowedFile, empty, extended
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.rollout_list import Query
from tests.support.reading_pools import read_in_threads
from tests.support.rollout_files import grid, random_rows, row, solved, write
from tests.support.waiting import eventually
from tests.unit.analysis.viewer.opened_runs import open_index

LINE = orjson.dumps(solved(1, 0, True)) + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two rollouts: the first has the reward 1, the second 0."""
    return write(tmp_path / "x.jsonl", grid([1], 2))


def read_through(path: Path, *, part: int = 2000, worth_saving: int = 0) -> FollowedFile:
    return advance(FollowedFile(path, worth_saving=worth_saving, part=part))


def advance(file: FollowedFile) -> FollowedFile:
    file.advance()
    while file.unread_bytes or not file.is_sorted:
        file.advance()
    return file


def rewards(file: FollowedFile) -> list[tuple[int, int, float]]:
    columns = file.snapshot.columns
    return list(zip(columns.task.tolist(), columns.repeat.tolist(), columns.reward.tolist(), strict=True))


def append(path: Path, tail: bytes) -> None:
    with path.open("ab") as file:
        file.write(tail)


def edited(path: Path, tail: bytes = b"") -> None:
    path.write_bytes(path.read_bytes().replace(b'"reward":1.0', b'"reward":0.5', 1) + tail)
    os.utime(path, ns=(1, 1))


def test_the_part_size_does_not_change_the_index(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(5, 4))
    in_parts, at_once = read_through(path, part=500).snapshot, read_through(path, part=1 << 20).snapshot
    for name in (*INTS, *FLOATS):
        found, expected = getattr(in_parts.columns, name).tolist(), getattr(at_once.columns, name).tolist()
        assert found == pytest.approx(expected, nan_ok=True)
    assert in_parts.end == at_once.end == path.stat().st_size


def test_a_file_without_a_complete_line_is_an_empty_index() -> None:
    assert extended(empty(), [], has_task_index=True).end == 0


def test_appended_rows_are_indexed_at_the_next_advance(path: Path) -> None:
    file = read_through(path)
    append(path, LINE)
    assert rewards(advance(file)) == [(0, 0, 1.0), (0, 1, 0.0), (1, 0, 1.0)]
    assert file.generation == 0


@pytest.mark.parametrize("before", [b"", orjson.dumps(row(0, 0, 1.0)) + b"\n"], ids=["first", "last"])
def test_an_incomplete_line_is_not_indexed_until_complete(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(before + LINE[:50])
    file = read_through(path)
    assert (len(file.snapshot.columns), file.size - file.snapshot.end) == (bool(before), 50)
    assert file.snapshot.error == ""
    append(path, LINE[50:])
    assert rewards(advance(file))[-1] == (1, 0, 1.0) and file.size == file.snapshot.end


def test_an_incomplete_line_longer_than_a_part_does_not_block_the_end(path: Path) -> None:
    append(path, b'{"x": "' + b"y" * 10_000)
    file = read_through(path, part=1000)
    assert (len(file.snapshot.columns), file.unread_bytes, file.at_end) == (2, 0, True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path: write(path.with_name("y"), grid([0] * 3, 1)).rename(path), [(task, 0, 0.0) for task in range(3)]),
        (lambda path: path.write_bytes(path.read_bytes().splitlines(keepends=True)[0]), [(0, 0, 1.0)]),
        (edited, [(0, 0, 0.5), (0, 1, 0.0)]),
        (lambda path: edited(path, LINE), [(0, 0, 0.5), (0, 1, 0.0), (1, 0, 1.0)]),
    ],
    ids=["replaced", "shortened", "edited", "edited and appended"],
)
def test_a_changed_file_is_read_again(
    path: Path, change: Callable[[Path], object], expected: list[tuple[int, int, float]]
) -> None:
    file = read_through(path)
    change(path)
    assert rewards(advance(file)) == expected
    assert file.generation == 1


def test_a_saved_index_opens_without_reading_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(5, 4))
    before, stat = rewards(read_through(path)), path.stat()
    assert (tmp_path / "x_index.npz").is_file()
    path.write_bytes(path.read_bytes().replace(b'"reward":', b'"REWARD":'))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    reopened = FollowedFile(path, worth_saving=0)
    reopened.advance()
    assert (rewards(reopened), reopened.at_end) == (before, True)


def test_a_saved_index_is_extended_by_appended_rows(path: Path) -> None:
    read_through(path)
    append(path, LINE)
    assert rewards(read_through(path)) == rewards(read_through(path, worth_saving=1 << 40))


def test_a_saved_index_keeps_all_its_data(tmp_path: Path) -> None:
    others = [row(7, 0, None, failure_kind="timeout"), row(7, 1, 1.0, mask_sample=True)]
    path = write(tmp_path / "x.jsonl", [*random_rows(3, 3), *others, *random_rows(1, 1)], tail=b"nonsense\n")
    first, reopened = read_through(path).snapshot, read_through(path).snapshot
    assert (reopened.error, reopened.end) == (first.error, first.end)
    saved, loaded = first.columns, reopened.columns
    assert (saved.end.names, saved.stages.keys()) == (loaded.end.names, loaded.stages.keys())
    assert saved.unmeasured.kind.names == loaded.unmeasured.kind.names == ("timeout", "masked")
    assert saved.unmeasured.offset.tolist() == loaded.unmeasured.offset.tolist()


def test_an_index_of_another_file_is_not_used(path: Path) -> None:
    read_through(path)
    assert len(read_through(write(path, grid([0, 0, 0], 2))).snapshot.columns) == 6


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a zip", None])
def test_a_damaged_index_is_rebuilt(path: Path, damage: bytes | None) -> None:
    expected = rewards(read_through(path))
    index = path.with_name("x_index.npz")
    index.write_bytes(index.read_bytes()[:-200] if damage is None else damage)
    for _ in range(2):
        assert rewards(read_through(path)) == expected


def test_an_index_that_cannot_be_saved_stays_in_memory(path: Path) -> None:
    path.with_name("x_index.npz").mkdir()
    file = read_through(path)
    assert (len(file.snapshot.columns), file.error) == (2, "")
    assert sorted(child.name for child in path.parent.iterdir()) == ["x.jsonl", "x_index.npz"]


def test_the_index_of_a_small_file_is_not_saved(path: Path) -> None:
    advance(FollowedFile(path)).close()
    assert [child.name for child in path.parent.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize(("first", "reason"), [(b"[1]\n", "is a list"), (b"level,reward\n", "is not JSON")])
def test_lines_that_are_not_rollouts_are_skipped_and_reported(tmp_path: Path, first: bytes, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(first + LINE + b"{broken\n" + b'{"reward": 1}\n')
    snapshot = read_through(path).snapshot
    assert len(snapshot.columns) == 1
    assert snapshot.error.startswith("3 lines ") and f"(at byte 0) {reason}" in snapshot.error


def test_the_first_of_duplicate_rollouts_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0), row(1, 0, 2.0), row(0, 0, 3.0)])
    file = read_through(path, part=100)
    assert rewards(file) == [(0, 0, 1.0), (1, 0, 2.0)] and "duplicate" in file.snapshot.error


def test_rows_without_a_task_index_are_numbered_by_position(tmp_path: Path) -> None:
    rows = [row(0, 0, reward) for reward in (1.0, None, 2.0, 3.0)]
    rows = [{key: value for key, value in each.items() if not key.startswith("_ng_")} for each in rows]
    path = write(tmp_path / "x.jsonl", rows[:3])
    file = read_through(path, part=100)
    append(path, orjson.dumps(rows[3]) + b"\n")
    assert rewards(advance(file)) == [(0, 0, 1.0), (2, 0, 2.0), (3, 0, 3.0)]
    assert file.snapshot.columns.unmeasured.task.tolist() == [1]


def test_a_file_that_disappears_for_a_while_is_read_again_when_it_returns(path: Path) -> None:
    file = read_through(path)
    away = path.rename(path.with_name("away"))
    assert "No such file" in advance(file).error
    away.rename(path)
    advance(file)
    assert (file.error, len(file.snapshot.columns)) == ("", 2)


def test_the_number_of_processes_does_not_change_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_threads(monkeypatch)
    path = write(tmp_path / "x.jsonl", random_rows(20, 5))
    single, several = open_index(path), open_index(path, workers=2, worth_processes=1, part=5000)
    assert several.runs[0].page(Query(limit=500)) == single.runs[0].page(Query(limit=500))


def test_an_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    runs = open_index(tmp_path / "bad.jsonl", write(tmp_path / "good.jsonl", grid([1], 2))).overview().runs
    assert "No such file" in runs[0].error
    assert (runs[1].measured, runs[1].error) == (2, "")


def test_an_index_can_be_queried_immediately_and_grows_in_the_background(tmp_path: Path) -> None:
    file_index = FileIndex([("x", write(tmp_path / "x.jsonl", random_rows(40, 5)))], part=1000)
    assert file_index.runs[0].page(Query()).total == 0
    file_index.start()
    eventually("all rows are listed", lambda: file_index.runs[0].page(Query()).total == 200)
    file_index.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "library"]


def test_reading_through_does_not_wait_after_a_slow_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 100.0)
    slow = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("rollyard.analysis.viewer.growing_index.time", slow)
    file_index = open_index(path := write(tmp_path / "x.jsonl", grid([1], 2)))
    write(path, grid([1, 1], 2))
    file_index.read_through()
    assert file_index.runs[0].page(Query()).total == 4


def test_closing_during_a_parallel_read_leaves_no_process(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(400, 5))
    file_index = FileIndex([("x", path)], workers=2, worth_processes=1, part=500)
    file_index.start()
    eventually("a reader process starts", active_children)
    file_index.close()
    # Another thread of this process may not have removed an ended reader from the list yet.
    eventually("every reader process has ended", lambda: not active_children())
    assert file_index.runs[0].page(Query()).total < 2000
