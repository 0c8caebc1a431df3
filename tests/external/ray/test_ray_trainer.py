"""A trainer as an actor: any command, because training itself needs no Ray."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from rollyard.training.ray_trainer import run_on_ray
from tests.external.ray.clusters import NO_TOKEN
from tests.support.processes import alive
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster requires no token. A client that requires the user's would not hear from its own actor."""
    for name, value in NO_TOKEN.items():
        monkeypatch.setenv(name, value)


PROGRAM = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.environ["WORD"], os.getcwd(), child.pid, flush=True)
raise SystemExit(3)
"""


def test_the_output_and_the_status_come_back_and_nothing_stays_behind(cluster: str, tmp_path: Path) -> None:
    output, lines = bytearray(), list[str]()
    status = run_on_ray(
        *(cluster, [sys.executable, "-c", PROGRAM], 0, tmp_path, {**os.environ, "WORD": "hello"}),
        write=output.extend,
        print_line=lines.append,
    )
    word, folder, child = output.decode().split()
    assert (status, word, folder) == (3, "hello", str(tmp_path))
    eventually("what the command had started has ended", lambda: not alive(int(child)))


INTERRUPTED = """
import signal, sys, time
def end(*_):
    print("asked to end", flush=True)
    time.sleep(0.2)
    raise SystemExit(130)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""


def test_ctrl_c_reaches_the_command_once(cluster: str, tmp_path: Path) -> None:
    output = bytearray()

    def write(text: bytes) -> None:
        output.extend(text)
        if b"ready" in text:
            os.kill(os.getpid(), signal.SIGINT)

    command = [sys.executable, "-c", INTERRUPTED]
    status = run_on_ray(cluster, command, 0, tmp_path, os.environ, write=write, print_line=lambda text: None)
    assert (status, output.decode().splitlines()) == (130, ["ready", "asked to end"])
