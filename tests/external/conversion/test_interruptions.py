"""The command as processes: racing for one conversion, killed, stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollyard.services.launchers.conversion import ConversionRequest, conversion_target, is_converted
from tests.external.conversion.conftest import Make
from tests.support.waiting import eventually

OPTIONS = ("--world", "2", "--dtype", "bfloat16")


def start(request: ConversionRequest, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rollyard.services.launchers.conversion", *options]
    return subprocess.Popen(
        [*command, "--dcp-ckpt-path", str(request.checkpoint), "--dcp-config", str(request.config)],
        env={**os.environ, **request.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("options", [(), ("--force-token", "sweep1")])
def test_exactly_one_of_eight_jobs_converts(checkpoint: Make, options: tuple[str, ...]) -> None:
    request = checkpoint(*OPTIONS)
    processes = [start(request, *options) for _ in range(8)]
    outputs = [process.communicate(timeout=300)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, outputs
    path = conversion_target(request)
    assert {lines[-1] for lines in outputs} == {str(path)}
    assert sum(f"Successfully converted checkpoint to: {path}" in lines for lines in outputs) == 1
    assert [p.name for p in path.parent.iterdir() if p.name[0] != "."] in (
        [path.name, f"{path.name}.lock"],
        [f"{path.name}.lock", path.name],
    )


def test_killed_at_random_instants_the_next_job_succeeds(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    kills = 0
    while kills < 6 and not is_converted(request):
        process = start(request)
        assert process.stdout
        assert process.stdout.readline() == "Acquired lock, converting DCP to HF format...\n"
        time.sleep(random.uniform(0, 4))
        process.kill()
        process.communicate()
        kills += 1
    process = start(request)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert is_converted(request)
    assert not list(Path(request.environ["LOG"]).rglob("*.tmp.*"))


def test_a_job_that_is_stopped_leaves_nothing_and_a_waiting_job_converts(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    first = start(request)
    assert first.stdout and first.stdout.readline()
    second = start(request)
    assert second.stdout
    assert second.stdout.readline() == "Another process is converting, waiting for completion...\n"
    first.send_signal(signal.SIGTERM)
    assert "interrupted" in first.communicate()[0]
    assert first.returncode == 130
    output = second.communicate(timeout=300)[0]
    assert second.returncode == 0 and "Successfully converted checkpoint to" in output
    assert not list(Path(request.environ["LOG"]).rglob("*.tmp.*"))


def test_a_forced_conversion_of_a_launch_leaves_the_files_of_readers(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    start(request).communicate(timeout=300)
    path = conversion_target(request)
    before = {file: (file.stat().st_ino, file.read_bytes()) for file in path.rglob("*")}
    forced = start(request, "--force-conversion").communicate(timeout=300)[0].splitlines()[-1]
    assert forced == f"{path}-2"
    assert {file: (file.stat().st_ino, file.read_bytes()) for file in path.rglob("*")} == before


def test_a_damaged_checkpoint_fails_every_waiting_job_with_its_reason(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    file = Path(request.checkpoint) / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1000])
    processes = [start(request) for _ in range(3)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [1] * 3
    assert all("__0_0.distcp is truncated" in output for output in outputs)
    eventually("the lock is released", lambda: not is_converted(request))
