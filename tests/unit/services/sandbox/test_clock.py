"""The deadline on a machine that has no time for a jail, told by a /proc of our own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.services.sandbox.inside.deadline import MAX_EXTENSION, DeadlineClock
from rollyard.services.sandbox.inside.monitor import _wait
from rollyard.services.sandbox.inside.pipe_reader import PipeReader

TESTS, ANSWER, ORPHAN = 7, 8, 9
LONG = 1000.0


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a /proc that is `tmp_path`."""
    opened = os.open(tmp_path, os.O_PATH)
    yield opened
    os.close(opened)


def queued(proc: Path, seconds: dict[int, float]) -> None:
    for process, waited in seconds.items():
        (proc / str(process)).mkdir()
        (proc / str(process) / "schedstat").write_text(f"1 {int(waited * 1e9)} 1\n")
    (proc / f"{TESTS}/task/{TESTS}").mkdir(parents=True)
    (proc / f"{TESTS}/task/{TESTS}/children").write_text(f"{ANSWER} {ORPHAN}")


def later(clock: DeadlineClock, seconds: float) -> DeadlineClock:
    clock._started_at -= seconds
    return clock


def test_time_in_the_queue_for_a_processor_does_not_count(tmp_path: Path, proc: int) -> None:
    queued(tmp_path, {TESTS: 2 * LONG, ANSWER: 3 * LONG})
    assert 0.9 * LONG < later(DeadlineClock(LONG, proc, TESTS), 5 * LONG).left() <= LONG


def test_the_time_that_an_answer_waited_counts_also_when_it_has_ended(tmp_path: Path, proc: int) -> None:
    queued(tmp_path, {TESTS: 0.0, ANSWER: 2 * LONG})
    clock = later(DeadlineClock(LONG, proc, TESTS), 2 * LONG)
    assert clock.left() > 0
    (tmp_path / f"{ANSWER}/schedstat").unlink()
    (tmp_path / f"{TESTS}/task/{TESTS}/children").write_text("")
    assert clock.left() > 0


def test_an_answers_orphans_do_not_queue_for_it(tmp_path: Path, proc: int) -> None:
    queued(tmp_path, {TESTS: 0.0, ANSWER: 0.0, ORPHAN: LONG})
    assert later(DeadlineClock(1.0, proc, TESTS), 2.0).left() <= 0


def test_the_deadline_never_moves_beyond_its_multiple(tmp_path: Path, proc: int) -> None:
    queued(tmp_path, {TESTS: LONG, ANSWER: LONG})
    assert later(DeadlineClock(1.0, proc, TESTS), MAX_EXTENSION - 0.5).left() <= 0.5


def test_a_kernel_that_keeps_no_such_count_leaves_the_deadline_where_it_is(proc: int) -> None:
    assert later(DeadlineClock(1.0, proc, TESTS), 2.0).left() <= 0


def test_a_report_that_is_there_is_not_overtaken_by_the_deadline(proc: int) -> None:
    told, report = os.pipe()
    shown, printed = os.pipe()
    os.write(report, b"{}")
    outlets = PipeReader(told, 100), PipeReader(shown, 100)
    outlets[0].read()
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["/bin/sleep", "0.1"]) as tests:
        assert _wait(DeadlineClock(0.0, proc, tests.pid), ours.fileno(), *outlets) == "finished"
    for descriptor in (told, report, shown, printed):
        os.close(descriptor)
