"""Real processes that race for one conversion, or are killed during it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from rollyard.launchers.conversion.cache import ConversionRequest, convert, is_converted
from rollyard.records.data_files import INSTALLED
from tests.support.waiting import deadline_s, eventually
from tests.unit.launchers.conversion.fake_conversion import (
    FAST,
    CopyingConverter,
    convert_into_journal,
    write_checkpoint,
)

FORK = multiprocessing.get_context("fork")


def start(folder: Path, token: str = "", seconds: float = 0.0) -> BaseProcess:
    process = FORK.Process(target=convert_into_journal, args=(folder, token, seconds))
    process.start()
    return process


def lines_of(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().splitlines() if (folder / name).exists() else []


def conversions(folder: Path) -> list[str]:
    return lines_of(folder, "conversions")


@pytest.mark.parametrize("token", ["", "one launch"])
def test_exactly_one_of_eight_processes_converts(tmp_path: Path, token: str) -> None:
    request = write_checkpoint(tmp_path)
    if token:
        convert(request, CopyingConverter(), settings=FAST, report=lambda line: None)
    processes = [start(tmp_path, token, 0.3) for _ in range(8)]
    for process in processes:
        process.join(deadline_s())
    assert [process.exitcode for process in processes] == [0] * 8
    assert len(conversions(tmp_path)) == 1
    paths = [line for line in lines_of(tmp_path, "lines") if line.startswith("/")]
    assert (len(paths), len(set(paths))) == (8, 1)
    assert is_converted(request)
    assert not list(tmp_path.rglob("*.tmp.*"))


def wait_and_kill(request: ConversionRequest, holder: BaseProcess | subprocess.Popen[bytes]) -> list[str]:
    """Convert while `holder` does; it is killed once this process waits. Returns the lines."""
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            assert "waiting" in line
            holder.kill()

    convert(request, CopyingConverter(), settings=FAST, report=report)
    return lines


def test_a_waiter_takes_over_when_the_converting_process_is_killed(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    first = start(tmp_path, "", 1000)
    eventually("the first one converts", lambda: conversions(tmp_path))
    lines = wait_and_kill(request, first)
    first.join()
    assert f"process {first.pid} on" in lines[1] and "without a result" in lines[2]
    assert is_converted(request)


def test_a_waiter_in_another_container_takes_over_after_the_expiry(tmp_path: Path) -> None:
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a PID namespace")
    request = write_checkpoint(tmp_path)
    line = [*apart, sys.executable, "-m", "tests.unit.launchers.conversion.fake_conversion", str(tmp_path)]
    with subprocess.Popen(line, cwd=INSTALLED) as first:
        eventually("the first one converts", lambda: conversions(tmp_path))
        lines = wait_and_kill(request, first)
    assert [line for line in lines if "without a result" in line]
    assert is_converted(request)
