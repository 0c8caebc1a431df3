"""X_notes.jsonl loses nothing: torn lines, foreign lines, several writers, replaced files, full disks."""

from __future__ import annotations

import errno
import os
import resource
from multiprocessing.synchronize import Barrier
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import RunError
from rollyard.records.note_records import TextNote
from rollyard.records.notes_file import NotesContent, NotesFile
from tests.support.waiting import deadline_s
from tests.unit.records.note_rows import record, rows
from tests.unit.services.processes import FORKS, in_child

ROW = rows()[0]


def texts(content: NotesContent) -> list[str]:
    return [one.text for one in content.records if isinstance(one, TextNote)]


@pytest.fixture
def notes(tmp_path: Path) -> NotesFile:
    return NotesFile(tmp_path / "x_notes.jsonl")


def _append_many(path: Path, author: str, count: int, start: Barrier) -> None:
    notes = NotesFile(path)
    start.wait(deadline_s())
    for number in range(count):
        notes.append(record(ROW, "note", author, text=f"{number} " + "x" * (number * 137 % 9000)))


def test_processes_that_write_at_the_same_time_lose_nothing(notes: NotesFile) -> None:
    names, count = [f"writer {number}" for number in range(6)], 60
    start = FORKS.Barrier(len(names))
    writers = [FORKS.Process(target=_append_many, args=(notes.path, name, count, start)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(deadline_s())
    assert [writer.exitcode for writer in writers] == [0] * len(names)
    content = notes.read()
    found = [(one.author, int(one.text.split()[0])) for one in content.records if isinstance(one, TextNote)]
    assert content.ignored_count == 0
    assert len(found) == len(names) * count
    for name in names:
        assert [number for author, number in found if author == name] == list(range(count))


def test_an_incomplete_last_line_waits_until_it_is_complete(notes: NotesFile) -> None:
    line = record(ROW, "note", text="first").model_dump_json().encode() + b"\n"
    notes.path.write_bytes(line[:40])
    assert notes.read().records == ()
    with notes.path.open("ab") as file:
        file.write(line[40:])
    assert [one.kind for one in notes.read().records] == ["note"]


def test_a_record_after_a_torn_line_is_kept_and_so_is_the_torn_line(notes: NotesFile) -> None:
    notes.path.write_bytes(b'{"id": "torn", "kind": "no')
    notes.append(record(ROW, "label", label="loop"))
    content = notes.read()
    assert [one.kind for one in content.records] == ["label"]
    assert notes.path.read_bytes().startswith(b'{"id": "torn", "kind": "no\n{')
    assert content.ignored_count == 1 and content.ignored[0].startswith("line 1:")


def test_foreign_lines_and_unknown_kinds_stay_and_are_counted(notes: NotesFile) -> None:
    notes.append(record(ROW, "note", text="first"))
    newer = {**record(ROW, "note", text="a").model_dump(mode="json"), "id": "newer", "kind": "drawing"}
    with notes.path.open("ab") as file:
        file.write(b"[1]\n\nnot JSON\n" + orjson.dumps(newer) + b"\n")
    before = notes.path.read_bytes()
    notes.append(record(ROW, "note", text="last"))
    content = notes.read()
    assert texts(content) == ["first", "last"]
    assert [line.split(":")[0] for line in content.ignored] == ["line 2", "line 4", "line 5"]
    assert notes.path.read_bytes().startswith(before)


def test_records_of_others_are_read_without_reading_the_file_again(notes: NotesFile) -> None:
    other = NotesFile(notes.path)
    notes.append(record(ROW, "note", text="a"))
    first = other.read()
    notes.append(record(ROW, "note", text="b"))
    second = other.read()
    assert second.records[:1] == first.records and len(second.records) == 2
    assert second.records[0] is first.records[0]
    assert second.generation == first.generation


def test_an_edited_file_is_read_again_from_the_start(notes: NotesFile) -> None:
    for text in ("aa", "bb"):
        notes.append(record(ROW, "note", text=text))
    first = notes.read()
    notes.path.write_bytes(notes.path.read_bytes().replace(b'"bb"', b'"cc"'))
    second = notes.read()
    assert texts(second) == ["aa", "cc"]
    assert second.generation > first.generation


def test_a_file_that_cannot_be_written_is_an_error_with_its_path(notes: NotesFile) -> None:
    notes.path.mkdir()
    assert str(notes.path) in notes.why_not_writable()
    with pytest.raises(RunError, match=r"x_notes\.jsonl"):
        notes.append(record(ROW, "note", text="a"))


def _append_with_little_space(path: Path, size: int) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        NotesFile(path).append(record(ROW, "note", text="b" * 1000))
    except RunError as error:
        return str(error)
    return ""


def test_a_full_disk_leaves_no_part_of_a_record(notes: NotesFile) -> None:
    notes.append(record(ROW, "note", text="a"))
    before = notes.path.read_bytes()
    message = in_child(_append_with_little_space, notes.path, len(before) + 500)
    assert "x_notes.jsonl" in message and os.strerror(errno.ENOSPC) in message
    assert notes.path.read_bytes() == before


def _why_not_writable_as_nobody(path: Path) -> str:
    os.setgid(65534)
    os.setuid(65534)
    return NotesFile(path).why_not_writable()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as a user without permission")
def test_a_folder_of_another_user_is_named() -> None:
    assert "/etc " in in_child(_why_not_writable_as_nobody, Path("/etc/x_notes.jsonl"))


def test_a_removed_file_has_no_records(notes: NotesFile) -> None:
    notes.append(record(ROW, "note", text="a"))
    notes.read()
    notes.path.unlink()
    assert notes.read().records == ()


def test_a_line_that_occurs_twice_counts_once(notes: NotesFile) -> None:
    notes.append(record(ROW, "note", text="a"))
    notes.path.write_bytes(notes.path.read_bytes() * 2)
    assert len(notes.read().records) == 1
