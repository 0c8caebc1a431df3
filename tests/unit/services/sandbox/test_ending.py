"""No process of the sandbox outlives the server, even when the server is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rollyard.records.data_files import INSTALLED
from tests.support.waiting import eventually
from tests.unit.services.sandbox.trials import descendants, wait_until_gone

SERVER = """
import asyncio, os, sys
from rollyard.services.sandbox.records import SandboxLimits, Trial
from rollyard.services.sandbox.sandbox import Sandbox

async def main():
    options = {"bubblewrap": None} if sys.argv[1] == "landlock" else {}
    sandbox = Sandbox(SandboxLimits(), **options)
    await sandbox.start()
    sleeper = Trial(code="import time\\ndef f(): time.sleep(300)", names=("f",), tests=("f()",))
    running = [asyncio.create_task(sandbox.run(sleeper)) for _ in range(2)]
    await asyncio.sleep(0)
    print(sandbox.layers.mode, flush=True)
    await asyncio.gather(*running)

asyncio.run(main())
"""


@pytest.mark.smoke
@pytest.mark.parametrize("mode", ["bubblewrap", "landlock"])
def test_every_sandbox_process_of_a_killed_server_ends(mode: str) -> None:
    command = [sys.executable, "-c", SERVER, mode]
    with subprocess.Popen(command, cwd=INSTALLED, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        if server.stdout.readline().strip() != mode:
            server.kill()
            pytest.skip(f"{mode} is not available")
        # the zygote, and for each of the two jails: monitor, test runner, answer process
        eventually("7 processes", lambda: len(descendants(server.pid)) >= 7)
        children = descendants(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        wait_until_gone(children)
