"""What a process tree uses is read from /proc."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rollyard.cli.diagnostics.environment.process_usage import usage_of

_PROGRAM = """
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=subprocess.PIPE)
held = [open("/dev/null") for _ in range(50)]
print("held", flush=True)
input()
inner.communicate()
"""


def test_descendants_and_open_files_count() -> None:
    command = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert {process.stdout.readline().strip() for _ in range(2)} == {"held", "up"}
        found = usage_of(process.pid)
        process.communicate("\n")
    assert found.processes == 2 and found.files >= 56
    assert found.memory > 1 << 20 and found.cpu_s >= 0


def test_a_process_that_has_exited_is_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError):
        usage_of(process.pid)
    assert usage_of(os.getpid()).processes >= 1
