"""A server that starts slowly reports its phase, and may have its own start timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.run_types import Heartbeat, Registration
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.runtime.launcher import Launcher, LocalLauncher
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import Stack
from rollyard.services.server.app import Server
from tests.support.fixtures import KEYS, load_text, make_folder, server_yaml
from tests.support.stacks import load_config
from tests.support.waiting import deadline_s


class Slow(Server):
    """Becomes ready when the test sets `go`."""

    go: asyncio.Event
    doing = "reading"

    @property
    def phase(self) -> str:
        return self.doing

    async def start(self) -> None:
        await self.go.wait()


@pytest.fixture
def registry(tmp_path: Path) -> ServerRegistry:
    config = load_text(tmp_path, server_yaml(make_folder(tmp_path)))
    made = ServerRegistry(KEYS.run_id, config.servers, config.identity())
    made.expect("environment#1")
    return made


def registered(*, ready: bool = False, phase: str = "") -> Registration:
    return Registration(
        name="environment", instance="environment#1", url="http://127.0.0.1:7001", pid=1, ready=ready, phase=phase
    )


def test_the_phase_of_a_starting_server_is_listed(registry: ServerRegistry) -> None:
    registry.register(registered(phase="loading weights 3/8"))
    assert registry.phase("environment#1") == registry.instances()[0].phase == "loading weights 3/8"
    assert registry.instances()[0].status == "starting"
    assert registry.phase("environment#2") == ""


def test_a_ready_server_reports_its_phase_in_its_heartbeat(registry: ServerRegistry) -> None:
    registry.register(registered(ready=True))
    registry.record_heartbeat(
        Heartbeat(instance="environment#1", requests=0, in_flight=0, sessions=0, phase="an engine restarts")
    )
    assert registry.instances()[0].phase == "an engine restarts"
    assert registry.instances()[0].ready


SLOW = """
import asyncio
from pathlib import Path
from rollyard.services.server.app import Server

class Slow(Server):
    @property
    def phase(self):
        return "thinking 1/2"

    async def start(self):
        while not Path({go!r}).exists():
            await asyncio.sleep(0.01)

server = Slow
"""


@pytest.mark.parametrize("colocate", [False, True], ids=["processes", "one process"])
async def test_a_run_prints_the_phase_of_a_slow_server(colocate: bool, tmp_path: Path) -> None:
    lines: list[str] = []
    go = tmp_path / "go"

    def print_line(line: str) -> None:
        lines.append(line)
        if "thinking" in line:
            go.touch()

    launcher = None if colocate else LocalLauncher(tmp_path)
    stack = one_server_stack(tmp_path, SLOW.format(go=str(go)), print_line, launcher)
    try:
        await stack.start()
    finally:
        await stack.stop()
    assert sum("thinking 1/2, " in line for line in lines) == 1


async def test_a_server_with_its_own_start_timeout_may_take_longer_than_the_others(tmp_path: Path) -> None:
    app = SLOW.format(go="/")  # which exists
    stack = one_server_stack(
        tmp_path, app, lambda text: None, LocalLauncher(tmp_path), ready_s=0.0, start_timeout_s=deadline_s()
    )
    try:
        await stack.start()
    finally:
        await stack.stop()


def one_server_stack(
    folder: Path,
    app: str,
    print_line: Callable[[str], None],
    launcher: Launcher | None,
    ready_s: float = deadline_s(),
    **settings: Any,
) -> Stack:
    tree = {"environment": {"resources_servers": {make_folder(folder, app=app): {"entrypoint": "app.py", **settings}}}}
    config = load_config(config=tree, roots=[folder], tmp_path=folder)
    logs = RunFolder.create(folder, KEYS.run_id)
    return Stack(config, KEYS, logs, print_line=print_line, launcher=launcher, head_port=0, ready_timeout_s=ready_s)
