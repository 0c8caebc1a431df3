"""The supervisor: who is signalled, who is started again, and what is said of a death."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollyard.services.backoff import Restarts
from rollyard.services.errors import RunError
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.run_types import Launch, Registration
from rollyard.services.runtime.launcher import LocalProcess, Process
from rollyard.services.runtime.ray_launcher import RayLauncher
from rollyard.services.runtime.stack import new_keys
from rollyard.services.runtime.supervisor import Supervisor
from tests.support.fixtures import load_text, make_folder, yaml_of

KEYS = new_keys()


class Played:
    """A process that ends when the test says so."""

    def __init__(self) -> None:
        self.pid = 1
        self.ended = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return int(await self.ended)

    def terminate(self) -> None:
        self.end(0)

    def kill(self) -> None:
        self.end(-9)

    def end(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)


class Machine:
    """Starts `Played` processes; the exceptions in `refuses` come first, after the first start."""

    def __init__(self, registry: ServerRegistry, *refuses: Exception) -> None:
        self.registry = registry
        self.refuses = list(refuses)
        self.started: list[tuple[Launch, Played]] = []

    async def launch(self, launch: Launch, log: Path) -> Process:
        if self.started and self.refuses:
            raise self.refuses.pop(0)
        self.started.append((launch, Played()))
        return self.started[-1][1]

    def say_ready(self, number: int) -> None:
        launch = self.started[number][0]
        self.registry.register(
            Registration(name=launch.name, instance=launch.instance, url="http://127.0.0.1:1", pid=1, ready=True)
        )


def supervised(
    tmp_path: Path, *refuses: Exception, settings: str = "{}", restarts: Restarts | None = None
) -> tuple[Supervisor, Machine, list[str]]:
    config = load_text(tmp_path, yaml_of(make_folder(tmp_path), settings))
    registry = ServerRegistry(KEYS.run_id, config.servers, {}, reloads=True)
    machine, said = Machine(registry, *refuses), list[str]()
    chosen = restarts or Restarts(first_pause_s=0.001, longest_pause_s=0.002)
    made = Supervisor(
        config.servers,
        registry,
        machine,
        KEYS,
        "http://127.0.0.1:1",
        tmp_path,
        say=said.append,
        restarts=chosen,
    )
    return made, machine, said


async def until(happened: Any) -> None:
    """Until it is true; the deadline is for a test that hangs."""
    async with asyncio.timeout(120):
        while not happened():
            await asyncio.sleep(0.001)


async def test_a_death_after_ready_that_start_did_not_see_is_a_restart_and_not_a_failed_start(tmp_path: Path) -> None:
    supervisor, machine, said = supervised(tmp_path)
    starting = asyncio.create_task(supervisor.start())
    try:
        await until(lambda: machine.started)
        machine.say_ready(0)
        machine.started[0][1].end(1)  # before `start` looks again: both happen between two of its looks
        await until(lambda: len(machine.started) == 2)
        assert not starting.done()
        machine.say_ready(1)
        await asyncio.wait_for(starting, 120)
    finally:
        starting.cancel()
        await supervisor.stop()
    assert len([line for line in said if "  ready  " in line]) == 1
    assert any("ended (exit status 1)" in line and "restarting it" in line for line in said)


async def test_a_death_before_ready_stops_the_start_with_the_servers_name(tmp_path: Path) -> None:
    supervisor, machine, _ = supervised(tmp_path)
    starting = asyncio.create_task(supervisor.start())
    try:
        await until(lambda: machine.started)
        machine.started[0][1].end(1)
        with pytest.raises(RunError, match="ended before it was ready"):
            await asyncio.wait_for(starting, 120)
    finally:
        await supervisor.stop()


@pytest.mark.parametrize("error", [ConnectionError("no machine"), ValueError("min() of nothing"), RuntimeError("")])
async def test_no_failed_restart_is_the_last_one_tried(error: Exception, tmp_path: Path) -> None:
    supervisor, machine, said = supervised(tmp_path, error, error)
    starting = asyncio.create_task(supervisor.start())
    try:
        await until(lambda: machine.started)
        machine.say_ready(0)
        await asyncio.wait_for(starting, 120)
        machine.started[0][1].end(1)
        await until(lambda: len(machine.started) == 2)
    finally:
        await supervisor.stop()
    assert Counter("cannot be started: " in line for line in said)[True] == 2


async def test_a_reload_ends_all_replicas_before_one_starts_and_is_not_a_restart(tmp_path: Path) -> None:
    supervisor, machine, said = supervised(tmp_path, settings="{replicas: 2}")
    starting = asyncio.create_task(supervisor.start())
    try:
        await until(lambda: len(machine.started) == 2)
        machine.say_ready(0)
        machine.say_ready(1)
        await asyncio.wait_for(starting, 120)
        first = machine.started[1][1]
        first.terminate = lambda: None  # type: ignore[method-assign]
        reloading = asyncio.create_task(supervisor.reload("environment"))
        await until(machine.started[0][1].ended.done)
        await asyncio.sleep(0.05)
        assert len(machine.started) == 2 and not reloading.done()
        first.end(0)
        await until(lambda: len(machine.started) == 4)
        machine.say_ready(2)
        machine.say_ready(3)
        await until(lambda: len([line for line in said if "  ready  " in line]) == 4)
    finally:
        await supervisor.stop()
    assert machine.registry.restarts == {} and not any("ended" in line for line in said)


async def test_a_reload_starts_a_server_at_once_that_waits_for_its_next_restart(tmp_path: Path) -> None:
    supervisor, machine, said = supervised(tmp_path, restarts=Restarts(first_pause_s=3600, longest_pause_s=3600))
    starting = asyncio.create_task(supervisor.start())
    try:
        await until(lambda: machine.started)
        machine.say_ready(0)
        await asyncio.wait_for(starting, 120)
        machine.started[0][1].end(1)
        await until(lambda: any("restarting it in 3600 s" in line for line in said))
        await asyncio.wait_for(supervisor.reload("environment"), 120)
        await until(lambda: len(machine.started) == 2)
    finally:
        await supervisor.stop()
    assert len(machine.started) == 2


async def test_a_stop_during_a_reload_leaves_no_process(tmp_path: Path) -> None:
    supervisor, machine, _ = supervised(tmp_path)
    starting = asyncio.create_task(supervisor.start())
    await until(lambda: machine.started)
    machine.say_ready(0)
    await asyncio.wait_for(starting, 120)
    reloading = asyncio.create_task(supervisor.reload("environment"))
    await asyncio.sleep(0)
    await supervisor.stop()
    await asyncio.wait_for(reloading, 120)
    assert all(process.ended.done() for _, process in machine.started)


def test_a_ray_cluster_without_machines_is_named() -> None:
    launcher: Any = SimpleNamespace(_placed=[])
    with pytest.raises(ConnectionError, match="no host of the Ray cluster is alive"):
        RayLauncher._least_loaded(launcher, set(), "environment")


async def test_what_a_dead_server_started_is_ended_while_its_number_is_still_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_group, unreaped = os.killpg, list[bool]()

    def recording(group: int, number: int) -> None:
        unreaped.append(os.waitid(os.P_PID, group, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None)
        signal_group(group, number)

    monkeypatch.setattr(os, "killpg", recording)
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, sys.stdin.read(), flush=True)"
    process = await LocalProcess.start([sys.executable, "-c", script], b"told", tmp_path / "log", os.environ)
    assert await process.wait() == 0
    process.terminate()  # a stop that comes late
    process.kill()
    assert unreaped == [True]
    left, told = (tmp_path / "log").read_text().split()
    assert told == "told"
    await until(lambda: not alive(int(left)))


def alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


async def test_a_process_that_reads_nothing_and_ends_is_told_by_its_status(tmp_path: Path) -> None:
    process = await LocalProcess.start(["/bin/false"], b"x" * 1_000_000, tmp_path / "log", {})
    assert await process.wait() == 1
