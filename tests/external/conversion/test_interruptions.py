"""The command as a process that is stopped. Unit tests kill conversions, and hold what happens in a race for one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rollyard.launchers.conversion.cache import ConversionRequest
from tests.external.conversion.conftest import Make
from tests.support.waiting import deadline_s

OPTIONS = ("--world", "2", "--dtype", "bfloat16")

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


def left_by(request: ConversionRequest) -> Iterator[Path]:
    """Folders of conversions that have not ended."""
    return Path(request.environ["LOG"]).rglob("*.tmp.*")


def test_a_job_that_is_stopped_leaves_nothing_and_a_waiting_job_converts(checkpoint: Make) -> None:
    request = checkpoint(*OPTIONS)
    first = start(request)
    assert first.stdout and any("Acquired lock" in line for line in first.stdout)
    first.send_signal(signal.SIGSTOP)  # so that it does not end before the second one starts
    second = start(request)
    assert second.stdout
    assert second.stdout.readline() == WAITING
    first.send_signal(signal.SIGTERM)
    first.send_signal(signal.SIGCONT)
    assert "interrupted" in first.communicate()[0]
    assert first.returncode == 130
    output = output_of(second)
    assert second.returncode == 0 and CONVERTED in output
    assert not list(left_by(request))
