"""What ng_run reports about changed files, and which servers it reloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.run_types import Registration
from rollyard.services.config.plugins import load_server
from rollyard.services.config.server_code.code_version import loaded_code
from rollyard.services.config.server_code.file_digest import file_digest
from rollyard.services.config.server_folders import FAMILIES
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.runtime.code_watcher import CodeWatcher
from tests.support.fixtures import load_text, make_folder, server_yaml


class WatchedServers:
    """Two servers on disk, registered with the code that they loaded; reloads are recorded."""

    def __init__(self, root: Path, *, reload: bool) -> None:
        names = make_folder(root, rules="A = 1\n"), make_folder(root, rules="A = 1\n")
        self.config = load_text(root, server_yaml(names[0], name="one") + server_yaml(names[1], name="two"))
        self.rules = {spec.name: spec.folder / "rules.py" for spec in self.config.servers}
        self.registry = ServerRegistry("run", self.config.servers, {}, reloads=reload)
        self.messages: list[str] = []
        self.reloaded: list[str] = []
        self.error: OperatorError | None = None
        for name in self.rules:
            self.register(name)
        configs = {path: file_digest(path) for path in (root / "config.yaml",)}
        self.watcher = CodeWatcher(
            self.registry,
            configs,
            tuple(self.rules),
            print_line=self.messages.append,
            remedy="restart",
            reload=self.reload if reload else None,
        )

    def register(self, name: str) -> None:
        spec = next(spec for spec in self.config.servers if spec.name == name)
        server_class = load_server(spec.family, spec.folder, "app.py")
        code, sources = loaded_code(spec.folder, server_class, FAMILIES, {})
        instance = f"{name}#{len(self.reloaded)}"
        self.registry.expect(instance)
        self.registry.register(
            Registration(name=name, instance=instance, url="http://a", pid=1, ready=True, code=code, sources=sources)
        )

    async def reload(self, name: str) -> None:
        if self.error is not None:
            raise self.error
        self.reloaded.append(name)
        self.registry.renew_code(name)
        self.register(name)

    async def check(self) -> list[str]:
        """Look until the files have settled; return the messages."""
        self.messages.clear()
        for _ in range(3):
            await self.watcher.check()
        return list(self.messages)

    def changed_files(self) -> dict[str, list[str]]:
        return {entry.server_name: entry.changed_files for entry in self.registry.instances() if entry.changed_files}


async def test_changed_code_is_reported_once_and_listed_until_it_is_reverted(tmp_path: Path) -> None:
    servers = WatchedServers(tmp_path, reload=False)
    assert await servers.check() == []
    servers.rules["one"].write_text("A = 2\n")
    (line,) = await servers.check()
    assert "/rules.py " in line and line.endswith("restart")
    assert list(servers.changed_files()) == ["one"] == list(servers.registry.directory().changed_files)
    servers.rules["one"].write_text("A = 3\n")
    assert await servers.check() == []
    servers.rules["one"].write_text("A = 1\n")
    (line,) = await servers.check()
    assert "rules.py" in line and "no longer" in line and servers.changed_files() == {}


async def test_a_changed_config_is_reported_as_read_only_at_startup(tmp_path: Path) -> None:
    servers = WatchedServers(tmp_path, reload=True)
    await servers.check()
    (tmp_path / "config.yaml").write_text("# other")
    (line,) = await servers.check()
    assert "config.yaml" in line and "restart ng_run" in line
    assert servers.reloaded == []


async def test_only_the_server_whose_code_changed_is_reloaded(tmp_path: Path) -> None:
    servers = WatchedServers(tmp_path, reload=True)
    await servers.check()
    servers.rules["two"].write_text("A = 2\n")
    (line,) = await servers.check()
    assert line.endswith("reloading two") and servers.reloaded == ["two"]
    assert servers.changed_files() == {} and servers.registry.directory().reloading == []
    assert await servers.check() == []


async def test_code_that_cannot_start_is_reported_once_and_the_next_change_is_loaded(tmp_path: Path) -> None:
    servers = WatchedServers(tmp_path, reload=True)
    await servers.check()
    servers.error = OperatorError("one: app.py cannot be imported: SyntaxError")
    servers.rules["one"].write_text("A =\n")
    line = (await servers.check())[-1]
    assert line.startswith("one cannot start") and "app.py" in line and "SyntaxError" in line
    assert "one: " not in line and "old code" in line
    assert await servers.check() == [] and list(servers.changed_files()) == ["one"]
    servers.error = None
    servers.rules["one"].write_text("A = 5\n")
    await servers.check()
    assert servers.reloaded == ["one"] and servers.changed_files() == {}


async def test_reverting_broken_code_needs_no_reload(tmp_path: Path) -> None:
    servers = WatchedServers(tmp_path, reload=True)
    await servers.check()
    servers.error = OperatorError("one: broken")
    servers.rules["one"].write_text("A =\n")
    await servers.check()
    servers.rules["one"].write_text("A = 1\n")
    (line,) = await servers.check()
    assert line.startswith("one ") and line.endswith("again")
    assert servers.reloaded == [] and servers.registry.directory().reloading == []


@pytest.mark.parametrize("count,message", [(1, "0.py has"), (8, "and 2 more")])
async def test_long_lists_of_files_are_shortened(tmp_path: Path, count: int, message: str) -> None:
    servers = WatchedServers(tmp_path, reload=False)
    folder = servers.rules["one"].parent
    for number in range(count):
        (folder / f"{number}.py").write_text("A = 1\n")
    servers.registry.renew_code("one")
    servers.register("one")
    await servers.check()
    for number in range(count):
        (folder / f"{number}.py").write_text("A = 2\n")
    (line,) = await servers.check()
    assert message in line
