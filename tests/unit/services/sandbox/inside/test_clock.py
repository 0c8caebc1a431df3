"""The deadline of a jail that waits for a processor, with a fake /proc."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.services.sandbox.inside.deadline import MAX_EXTENSION, DeadlineClock
from rollyard.services.sandbox.inside.monitor import PipeReader, _wait

TESTS, ANSWER, ORPHAN = 7, 8, 9
LONG = 1000.0


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[int]:
    """A descriptor of `tmp_path`, which takes the place of /proc."""
    descriptor = os.open(tmp_path, os.O_PATH)
    yield descriptor
    os.close(descriptor)


def write_wait_times(proc: Path, seconds: dict[int, float]) -> None:
    for pid, waited in seconds.items():
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "schedstat").write_text(f"1 {int(waited * 1e9)} 1\n")
    (proc / f"{TESTS}/task/{TESTS}").mkdir(parents=True)
    (proc / f"{TESTS}/task/{TESTS}/children").write_text(f"{ANSWER} {ORPHAN}")


def advance(clock: DeadlineClock, seconds: float) -> DeadlineClock:
    clock._started_at -= seconds
    return clock


def test_time_spent_waiting_for_a_processor_does_not_count(tmp_path: Path, proc: int) -> None:
    write_wait_times(tmp_path, {TESTS: 2 * LONG, ANSWER: 3 * LONG})
    assert 0.9 * LONG < advance(DeadlineClock(LONG, proc, TESTS), 5 * LONG).left() <= LONG


def test_the_wait_time_of_an_answer_is_kept_after_it_ended(tmp_path: Path, proc: int) -> None:
    write_wait_times(tmp_path, {TESTS: 0.0, ANSWER: 2 * LONG})
    clock = advance(DeadlineClock(LONG, proc, TESTS), 2 * LONG)
    assert clock.left() > 0
    (tmp_path / f"{ANSWER}/schedstat").unlink()
    (tmp_path / f"{TESTS}/task/{TESTS}/children").write_text("")
    assert clock.left() > 0


def test_wait_time_of_orphaned_processes_does_not_extend_the_deadline(tmp_path: Path, proc: int) -> None:
    write_wait_times(tmp_path, {TESTS: 0.0, ANSWER: 0.0, ORPHAN: LONG})
    assert advance(DeadlineClock(1.0, proc, TESTS), 2.0).left() <= 0


def test_the_thread_or_child_of_the_answer_that_waited_longest_counts(tmp_path: Path, proc: int) -> None:
    child = 20
    write_wait_times(tmp_path, {TESTS: 0.0, ANSWER: 0.0, child: 0.75 * LONG})
    for thread, waited in ((11, LONG), (12, LONG)):
        (tmp_path / f"{ANSWER}/task/{thread}").mkdir(parents=True)
        (tmp_path / f"{ANSWER}/task/{thread}/schedstat").write_text(f"1 {int(waited * 1e9)} 1\n")
    (tmp_path / f"{ANSWER}/task/11/children").write_text(f"{child} ")
    clock = advance(DeadlineClock(LONG, proc, TESTS), 1.5 * LONG)
    assert 0.4 * LONG < clock.left() <= 0.5 * LONG
    (tmp_path / f"{child}/schedstat").write_text(f"1 {int(2 * LONG * 1e9)} 1\n")
    assert 0.1 * LONG < advance(clock, 1.6 * LONG).left() <= 0.15 * LONG


def test_the_deadline_is_extended_by_at_most_a_fixed_factor(tmp_path: Path, proc: int) -> None:
    write_wait_times(tmp_path, {TESTS: LONG, ANSWER: LONG})
    assert advance(DeadlineClock(1.0, proc, TESTS), MAX_EXTENSION - 0.5).left() <= 0.5


def test_without_schedstat_the_deadline_is_not_extended(proc: int) -> None:
    assert advance(DeadlineClock(1.0, proc, TESTS), 2.0).left() <= 0


def test_a_report_that_has_arrived_takes_precedence_over_the_deadline(proc: int) -> None:
    report_out, report_in = os.pipe()
    output_out, output_in = os.pipe()
    os.write(report_in, b"{}")
    readers = PipeReader(report_out, 100), PipeReader(output_out, 100)
    readers[0].read()
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["/bin/sleep", "0.1"]) as tests:
        assert _wait(DeadlineClock(0.0, proc, tests.pid), ours.fileno(), *readers) == "finished"
    for descriptor in (report_out, report_in, output_out, output_in):
        os.close(descriptor)
