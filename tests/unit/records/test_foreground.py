from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.records.script import run_foreground
from tests.support.waiting import deadline_s

SLOW_END = """
import signal, sys, time
def end(number, frame):
    time.sleep(0.6)
    print("ended", number, flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(300)
"""
PARENT = """
import sys
from rollyard.records.script import run_foreground
sys.exit(run_foreground([sys.executable, "-c", sys.argv[1]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_ends_in_its_own_time(number: signal.Signals) -> None:
    """subprocess.run kills it after 0.25 s."""
    with subprocess.Popen([sys.executable, "-c", PARENT, SLOW_END], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == f"ended {number:d}\n"
        assert process.wait(deadline_s()) == 130


def test_the_status_is_that_of_the_command_and_the_handlers_are_restored(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert run_foreground([sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert run_foreground([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137
    with pytest.raises(FileNotFoundError):
        run_foreground([str(tmp_path / "absent")])
    assert signal.getsignal(signal.SIGINT) is before
