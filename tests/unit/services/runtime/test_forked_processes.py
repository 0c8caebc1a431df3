"""Processes that are forked before the event loop runs, and become servers later."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from rollyard.records.data_files import INSTALLED
from rollyard.records.run_types import Keys, Launch
from rollyard.services.runtime.launcher import forked_processes
from tests.support.fixtures import make_folder

APP = """
import os, random, sys
import numpy.random
from rollyard.services.server.app import Server

class Mine(Server):
    async def check(self):
        print(os.getpid(), os.getsid(0), repr(sys.stdin.read()), random.random(), numpy.random.random())
        print(open("/proc/self/comm").read())
        if self.name == "broken":
            raise ValueError("the reason")

server = Mine
"""
PROGRAM = """
import asyncio, os, sys
from pathlib import Path
import numpy.random
from rollyard.records.run_types import Launch
from rollyard.services.runtime.launcher import LocalLauncher, forked_processes

async def launch_all(forked):
    launcher = LocalLauncher(Path("cache"), forked=forked)
    for number, text in enumerate(sys.argv[1:]):
        launch = Launch.model_validate_json(text).model_copy(update={"parent_pid": os.getpid()})
        process = await launcher.launch(launch, Path(f"{number}.log"))
        print(process.pid, await process.wait())

with forked_processes(int(sys.argv.pop(1))) as forked:
    print(*(one.pid for one in forked), flush=True)
    asyncio.run(launch_all(forked))
"""


def run(folder: Path, forked: int, *names: str) -> list[list[int]]:
    """Launch a server of each name. Return the ids of the forked processes, then id and status of each server's."""
    name = make_folder(folder, app=APP)
    launch = Launch(
        name="",
        instance="",
        family="resources_servers",
        implementation=name,
        folder=str(folder / "resources_servers" / name),
        settings={},
        keys=Keys(run_id="run", secret="secret"),
        head_url="",
        parent_pid=0,
        check_only=True,
    )
    launches = [launch.model_copy(update={"name": name}).model_dump_json() for name in names]
    command = [sys.executable, "-c", PROGRAM, str(forked), *launches]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(INSTALLED)})
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def test_a_forked_server_has_its_own_session_log_input_and_random_numbers(tmp_path: Path) -> None:
    forked, *launched = run(tmp_path, 2, "first", "second", "third")
    assert [status for _, status in launched] == [0, 0, 0]
    assert {pid for pid, _ in launched[:2]} == set(forked)  # the third gets a new interpreter
    logs = [(tmp_path / f"{number}.log").read_text().split() for number in range(3)]
    assert [log[:3] for log in logs] == [[str(pid), str(pid), "''"] for pid, _ in launched]
    assert len({log[3] for log in logs}) == len({log[4] for log in logs}) == 3


def test_a_servers_process_has_the_beginning_of_its_name(tmp_path: Path) -> None:
    run(tmp_path, 1, "first", "a_second_server_with_a_long_name")
    assert [(tmp_path / f"{number}.log").read_text().split()[-1] for number in range(2)] == ["first", "a_second_server"]


def test_a_forked_server_that_fails_leaves_a_traceback_in_its_log(tmp_path: Path) -> None:
    _, (_, status) = run(tmp_path, 2, "broken")
    log = (tmp_path / "0.log").read_text()
    assert status == 1 and "Traceback" in log and log.endswith("ValueError: the reason\n")


def test_nothing_is_forked_if_another_thread_runs() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    with forked_processes(1) as forked:
        ended.set()
        thread.join()
        assert not forked


def test_nothing_is_forked_if_a_module_has_loaded_cuda(tmp_path: Path) -> None:
    found = find_spec("orjson.orjson")  # any shared library
    assert found is not None and found.origin is not None
    library = shutil.copy(found.origin, tmp_path / "libcuda.so.1")
    program = f"import ctypes; ctypes.CDLL({str(library)!r})\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program, "1"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_ctrl_c_during_a_fork_is_kept() -> None:
    program = """
import os, signal
from rollyard.services.runtime.launcher import forked_processes

os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with forked_processes(2):
        print("lost")
except KeyboardInterrupt:
    print("kept")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("kept\n", "")
