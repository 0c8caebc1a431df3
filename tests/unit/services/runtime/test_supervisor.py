"""The supervisor: which processes it signals and restarts, and how it reports an exit."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollyard.records.errors import RunError
from rollyard.records.run_types import Launch, Registration
from rollyard.services.backoff import Backoff
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.runtime.launcher import LocalProcess, Process
from rollyard.services.runtime.ray_launcher import RayLauncher
from rollyard.services.runtime.stack import new_keys
from rollyard.services.runtime.supervisor import Supervisor
from tests.support.fixtures import load_text, make_folder, server_yaml
from tests.support.waiting import deadline_s, until
from tests.unit.services.processes import wait_for_end

KEYS = new_keys()


class ScriptedProcess:
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


class ScriptedLauncher:
    """Starts `ScriptedProcess`es; after the first start, it first raises the exceptions in `errors`."""

    def __init__(self, registry: ServerRegistry, *errors: Exception) -> None:
        self.registry = registry
        self.errors = list(errors)
        self.started: list[tuple[Launch, ScriptedProcess]] = []

    async def launch(self, launch: Launch, log: Path) -> Process:
        if self.started and self.errors:
            raise self.errors.pop(0)
        self.started.append((launch, ScriptedProcess()))
        return self.started[-1][1]

    def register_ready(self, number: int) -> None:
        launch = self.started[number][0]
        self.registry.register(
            Registration(name=launch.name, instance=launch.instance, url="http://127.0.0.1:1", pid=1, ready=True)
        )


def make_supervisor(
    tmp_path: Path, *errors: Exception, settings: str = "{}", restarts: Backoff | None = None
) -> tuple[Supervisor, ScriptedLauncher, list[str]]:
    config = load_text(tmp_path, server_yaml(make_folder(tmp_path), settings))
    registry = ServerRegistry(KEYS.run_id, config.servers, {})
    launcher, messages = ScriptedLauncher(registry, *errors), list[str]()
    policy = restarts or Backoff(first_pause_s=0.001, longest_pause_s=0.002)
    supervisor = Supervisor(
        config.servers,
        registry,
        launcher,
        KEYS,
        "http://127.0.0.1:1",
        tmp_path,
        print_line=messages.append,
        restarts=policy,
    )
    return supervisor, launcher, messages


async def start(supervisor: Supervisor, launcher: ScriptedLauncher, *, replicas: int = 1) -> None:
    """Start the server and register all its replicas as ready."""
    starting = asyncio.create_task(supervisor.start())
    await until(lambda: len(launcher.started) == replicas)
    for number in range(replicas):
        launcher.register_ready(number)
    await asyncio.wait_for(starting, deadline_s())


async def test_an_exit_right_after_ready_is_a_restart_not_a_failed_start(tmp_path: Path) -> None:
    supervisor, launcher, messages = make_supervisor(tmp_path)
    starting = asyncio.create_task(supervisor.start())
    try:
        await until(lambda: launcher.started)
        launcher.register_ready(0)
        launcher.started[0][1].end(1)  # mostly both happen between two checks of `start`
        await until(lambda: len(launcher.started) == 2)
        launcher.register_ready(1)
        await asyncio.wait_for(starting, deadline_s())
    finally:
        starting.cancel()
        await supervisor.stop()
    assert any("  ready  " in line for line in messages)
    assert any("exited (exit status 1)" in line and "restarting it" in line for line in messages)


async def test_an_exit_before_ready_stops_the_start(tmp_path: Path) -> None:
    supervisor, launcher, _ = make_supervisor(tmp_path)
    starting = asyncio.create_task(supervisor.start())
    try:
        await until(lambda: launcher.started)
        launcher.started[0][1].end(1)
        with pytest.raises(RunError, match="before it was ready"):
            await asyncio.wait_for(starting, deadline_s())
    finally:
        await supervisor.stop()


@pytest.mark.parametrize("error", [ConnectionError("no machine"), ValueError("min() of nothing"), RuntimeError("")])
async def test_a_failed_restart_is_tried_again(error: Exception, tmp_path: Path) -> None:
    supervisor, launcher, messages = make_supervisor(tmp_path, error, error)
    try:
        await start(supervisor, launcher)
        launcher.started[0][1].end(1)
        await until(lambda: len(launcher.started) == 2)
    finally:
        await supervisor.stop()
    assert Counter("cannot be started: " in line for line in messages)[True] == 2


def test_a_ray_cluster_without_live_hosts_is_an_error() -> None:
    launcher: Any = SimpleNamespace(_placed=[])
    with pytest.raises(ConnectionError, match="can be reached"):
        RayLauncher._least_loaded(launcher, set(), "environment")


async def test_children_of_a_dead_server_are_killed_before_its_pid_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_killpg, unreaped = os.killpg, list[bool]()

    def record_killpg(group: int, number: int) -> None:
        unreaped.append(os.waitid(os.P_PID, group, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None)
        real_killpg(group, number)

    monkeypatch.setattr(os, "killpg", record_killpg)
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, sys.stdin.read(), flush=True)"
    process = await LocalProcess.start([sys.executable, "-c", script], b"input", tmp_path / "log", os.environ)
    assert await process.wait() == 0
    process.terminate()  # a late stop
    process.kill()
    assert unreaped == [True]
    child, output = (tmp_path / "log").read_text().split()
    assert output == "input"
    wait_for_end(int(child))
