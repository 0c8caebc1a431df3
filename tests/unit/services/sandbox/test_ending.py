"""Nothing outlives the server, not even when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from rollyard.services.io.search_path import INSTALLED
from tests.unit.services.sandbox.processes import descendants, until_alive

SERVER = """
import asyncio, os, sys
from rollyard.services.sandbox.records import Limits, Trial
from rollyard.services.sandbox.sandbox import Sandbox

async def main():
    how = {"bubblewrap": None} if sys.argv[1] == "landlock" else {}
    sandbox = Sandbox(Limits(), **how)
    await sandbox.start()
    sleeper = Trial(code="import time\\ndef f(): time.sleep(300)", names=("f",), tests=("f()",))
    running = [asyncio.create_task(sandbox.run(sleeper)) for _ in range(2)]
    await asyncio.sleep(0)
    print(sandbox.layers.mode, flush=True)
    await asyncio.gather(*running)

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["bubblewrap", "landlock"])
def test_every_process_of_a_killed_server_ends(mode: str) -> None:
    command = [sys.executable, "-c", SERVER, mode]
    with subprocess.Popen(command, cwd=INSTALLED, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        if server.stdout.readline().strip() != mode:
            server.kill()
            pytest.skip(f"no {mode} here")
        # zygote, and for each of the two jails: warden, tests, answer
        for _ in range(2400):
            below = descendants(server.pid)
            if len(below) >= 7:
                break
            time.sleep(0.05)
        assert len(below) >= 7
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        assert until_alive(below, wanted=0) == []
