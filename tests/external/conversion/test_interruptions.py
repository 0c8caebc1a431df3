"""The command as processes: racing for one conversion, killed, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.launchers.conversion import ConversionRequest, conversion_target, is_converted
from tests.external.conversion.conftest import Make
from tests.support.waiting import deadline_s, eventually

OPTIONS = ("--world", "2", "--dtype", "bfloat16")
JOBS = 4


ACQUIRED = "Acquired lock, converting DCP to HF format...\n"
WAITING = "Another process is converting, waiting for completion...\n"
CONVERTED = "Successfully converted checkpoint to: "
"""What NeMo-RL's own conversion prints."""


def start(request: ConversionRequest, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rollyard.launchers.conversion", *options]
    return subprocess.Popen(
        [*command, "--dcp-ckpt-path", str(request.checkpoint), "--dcp-config", str(request.config)],
        env={**os.environ, **request.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    """Wait for its end. A job imports torch and may wait for another one."""
    return process.communicate(timeout=5 * deadline_s())[0]


def left_by(request: ConversionRequest, pattern: str = "*.tmp.*") -> Iterator[Path]:
    """Files of conversions that have not ended."""
    return Path(request.environ["LOG"]).rglob(pattern)


@pytest.mark.parametrize("options", [(), ("--force-token", "sweep1")])
def test_exactly_one_of_several_jobs_converts(checkpoint: Make, options: tuple[str, ...]) -> None:
    request = checkpoint(*OPTIONS)
    processes = [start(request, *options) for _ in range(JOBS)]
    outputs = [output_of(process).splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * JOBS, outputs
    path = conversion_target(request)
    assert {lines[-1] for lines in outputs} == {str(path)}
    assert sum(CONVERTED + str(path) in lines for lines in outputs) == 1
    assert {p.name for p in path.parent.iterdir() if p.name[0] != "."} == {path.name, f"{path.name}.lock"}


def test_after_jobs_that_were_killed_the_next_one_succeeds(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    kills = 0
    for written in ("", "*.tmp.*", "*.tmp.*/*.safetensors"):  # with the lock; with a folder; in the middle of writing
        process = start(request)
        assert process.stdout
        assert process.stdout.readline() == ACQUIRED
        if written:
            eventually(f"{written} or the end", lambda: any(left_by(request, written)) or process.poll() is not None)  # noqa: B023
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        if is_converted(request):
            break
    assert kills
    process = start(request)
    output = output_of(process)
    assert process.returncode == 0, output
    assert is_converted(request)
    assert not list(left_by(request))


def test_a_job_that_is_stopped_leaves_nothing_and_a_waiting_job_converts(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    first = start(request)
    assert first.stdout and first.stdout.readline()
    second = start(request)
    assert second.stdout
    assert second.stdout.readline() == WAITING
    first.send_signal(signal.SIGTERM)
    assert "interrupted" in first.communicate()[0]
    assert first.returncode == 130
    output = output_of(second)
    assert second.returncode == 0 and CONVERTED in output
    assert not list(left_by(request))


def test_a_forced_conversion_of_a_launch_leaves_the_files_of_readers(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    output_of(start(request))
    path = conversion_target(request)
    before = {file: (file.stat().st_ino, file.read_bytes()) for file in path.rglob("*")}
    forced = output_of(start(request, "--force-conversion")).splitlines()[-1]
    assert forced == f"{path}-2"
    assert {file: (file.stat().st_ino, file.read_bytes()) for file in path.rglob("*")} == before


def test_a_damaged_checkpoint_fails_every_waiting_job_with_its_reason(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    file = Path(request.checkpoint) / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1000])
    processes = [start(request) for _ in range(3)]
    outputs = [output_of(process) for process in processes]
    assert [process.returncode for process in processes] == [1] * 3
    assert all("__0_0.distcp is truncated" in output for output in outputs)
    eventually("the lock is released", lambda: not is_converted(request))
