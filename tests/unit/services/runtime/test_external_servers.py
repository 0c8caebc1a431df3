from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Heartbeat
from rollyard.services.config.load import load
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.runtime.foreign_servers import ExternalServers
from tests.support.foreign_folders import entry
from tests.support.waiting import until
from tests.unit.services.runtime.test_health_probe import Server

DOWN = Failure(FailureKind.UNREACHABLE, "connection refused")


class Watched:
    def __init__(self, folder: Path, registry: type[ServerRegistry] = ServerRegistry) -> None:
        tree = {"counter": entry("resources_servers", "counter", url="http://x")}
        self.config = load([tree], [], [folder, INSTALLED], {})
        self.server = Server({"/health": 200})
        self.messages: list[str] = []
        self.changes: list[tuple[str, str]] = []
        self.registry = registry("r1", self.config.servers, {}, on_change=self._changed)
        self.external = ExternalServers(
            self.config.servers,
            self.registry,
            self.server,
            print_line=self.messages.append,
            ready_timeout_s=5.0,
            interval_s=0.01,
        )

    def _changed(self, act: str, **detail: Any) -> None:
        self.changes.append((act, detail["instance"]))

    @property
    def status(self) -> str:
        return self.registry.instances()[0].status

    async def probed(self, times: int) -> None:
        before = len(self.server.paths)
        await until(lambda: len(self.server.paths) >= before + times)


async def test_one_failed_probe_does_not_end_sessions(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    await watched.external.start()
    watched.server.statuses["/health"] = DOWN
    await until(lambda: watched.server.paths[-1:] == ["/health"])
    watched.server.statuses["/health"] = 200
    await watched.probed(3)
    await watched.external.stop()
    names = [instance.process_name for instance in watched.registry.instances()]
    assert watched.status == "success" and len(names) == 1


async def test_a_server_that_cannot_register_itself_is_a_change_of_the_run_when_it_comes_and_when_it_comes_back(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path)
    await watched.external.start()
    watched.server.statuses["/health"] = DOWN
    await until(lambda: watched.status == "connection_error")
    watched.server.statuses["/health"] = 200
    await until(lambda: watched.status == "success")
    await watched.external.stop()
    assert watched.changes == [("register", "counter#1"), ("deregister", "counter#1"), ("register", "counter#2")]


async def test_a_busy_server_keeps_its_instance(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    await watched.external.start()
    watched.server.statuses["/health"] = Failure(FailureKind.TIMEOUT, "no response within 5 s")
    await watched.probed(5)
    await watched.external.stop()
    assert watched.registry.directory().servers == {"counter": ["http://x"]}


class FailingRegistry(ServerRegistry):
    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        raise RuntimeError("a bug")


@pytest.mark.filterwarnings("error")
async def test_an_unexpected_error_does_not_end_the_watch(tmp_path: Path) -> None:
    watched = Watched(tmp_path, FailingRegistry)
    await watched.external.start()
    await watched.probed(3)
    watched.server.statuses["/health"] = DOWN
    await until(lambda: watched.status == "connection_error")
    await watched.external.stop()
