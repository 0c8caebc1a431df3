"""The audit log as a file: its mode, its size, several writers, and what happens if it cannot be written."""

from __future__ import annotations

import logging
import multiprocessing
import resource
import stat
from pathlib import Path

import orjson
import pytest

from rollyard.records import audit
from rollyard.records.audit import AuditLine, AuditLog, Origin
from rollyard.records.types import Json


def lines(path: Path) -> list[Json]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def write(path: Path, count: int, name: str = "head") -> None:
    log = AuditLog(path, "r1", name)
    for number in range(count):
        log.write("POST /register", Origin(address="127.0.0.1:1", uid=7), {"number": number}, 200)


def test_a_line_says_who_did_what_when_and_with_which_result(tmp_path: Path) -> None:
    write(tmp_path / "audit.jsonl", 1)
    line = AuditLine.model_validate(lines(tmp_path / "audit.jsonl")[0])
    assert (line.run, line.server, line.act, line.status) == ("r1", "head", "POST /register", 200)
    assert (line.origin, line.detail) == (Origin(address="127.0.0.1:1", uid=7), {"number": 0})
    assert line.time.tzinfo is not None


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    write(tmp_path / "audit.jsonl", 1)
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


def test_the_file_and_the_one_before_it_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_BYTES", 2000)
    write(tmp_path / "audit.jsonl", 100)
    assert {path.name for path in tmp_path.iterdir()} == {"audit.jsonl", "audit.1.jsonl"}
    assert all(path.stat().st_size <= 2000 and path.stat().st_mode & 0o77 == 0 for path in tmp_path.iterdir())
    kept = [line["detail"]["number"] for name in ("audit.1.jsonl", "audit.jsonl") for line in lines(tmp_path / name)]
    assert kept == list(range(kept[0], 100))


def test_the_lines_of_several_processes_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writers = [
        multiprocessing.get_context("spawn").Process(target=write, args=(path, 200, f"server-{number}"))
        for number in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = [(line["server"], line["detail"]["number"]) for line in lines(path)]
    assert sorted(found) == [(f"server-{writer}", number) for writer in range(3) for number in range(200)]


def test_no_value_can_begin_a_line_or_command_a_terminal(tmp_path: Path) -> None:
    mode = "keep\n{}\r\x1b[2J\x9b2J\u2028\u202e"
    AuditLog(tmp_path / "audit.jsonl", "r1", "head").write("POST /pause", Origin(), {"mode": mode})
    (line,) = lines(tmp_path / "audit.jsonl")
    assert line["detail"] == {"mode": mode}
    assert (tmp_path / "audit.jsonl").read_bytes().rstrip(b"\n").decode().isascii()
    assert (tmp_path / "audit.jsonl").read_text().rstrip("\n").isprintable()


def test_a_line_that_is_cut_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"time": "2026-')
    write(path, 1)
    assert orjson.loads(path.read_bytes().splitlines()[1])["act"] == "POST /register"


def test_a_line_for_which_the_disk_has_no_room_leaves_no_part_of_it_and_is_in_the_log_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, 1)
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        write(path, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == size and '"act":"POST /register"' in caplog.text


@pytest.mark.parametrize("path", [None, Path("missing/audit.jsonl")])
def test_a_line_that_has_no_file_is_in_the_log_of_the_server(
    path: Path | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        AuditLog(path and tmp_path / path, "r1", "head").write("POST /pause", Origin(), {"mode": "keep"})
    assert '"act":"POST /pause"' in caplog.text and '"mode":"keep"' in caplog.text
