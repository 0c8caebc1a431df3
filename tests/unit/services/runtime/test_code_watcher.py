"""What ng_run says of changed files, and which servers it reloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.services.config.plugins import FAMILIES, load_server
from rollyard.services.config.server_code.code_version import loaded_code
from rollyard.services.config.server_code.file_digest import file_digest
from rollyard.services.errors import OperatorError
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.run_types import Registration
from rollyard.services.runtime.code_watcher import CodeWatcher
from tests.support.fixtures import load_text, make_folder, yaml_of


class Watched:
    """Two servers on disk, registered with the code that they loaded; reloads are recorded."""

    def __init__(self, root: Path, *, reload: bool) -> None:
        names = make_folder(root, rules="A = 1\n"), make_folder(root, rules="A = 1\n")
        self.config = load_text(root, yaml_of(names[0], name="one") + yaml_of(names[1], name="two"))
        self.rules = {spec.name: spec.folder / "rules.py" for spec in self.config.servers}
        self.registry = ServerRegistry("run", self.config.servers, {}, reloads=reload)
        self.said: list[str] = []
        self.reloaded: list[str] = []
        self.error: OperatorError | None = None
        for name in self.rules:
            self.register(name)
        configs = {path: file_digest(path) for path in (root / "config.yaml",)}
        self.watcher = CodeWatcher(
            self.registry,
            configs,
            tuple(self.rules),
            say=self.said.append,
            remedy="restart",
            reload=self.reload if reload else None,
        )

    def register(self, name: str) -> None:
        spec = next(spec for spec in self.config.servers if spec.name == name)
        kind = load_server(spec.family, spec.folder, "app.py")
        code, sources = loaded_code(spec.folder, kind, FAMILIES, {})
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
        """What is said once the files have settled."""
        self.said.clear()
        for _ in range(3):
            await self.watcher.check()
        return list(self.said)

    def changed_files(self) -> dict[str, list[str]]:
        return {shown.server_name: shown.changed_files for shown in self.registry.instances() if shown.changed_files}


async def test_changed_code_is_told_once_shown_in_the_directory_and_withdrawn_when_undone(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reload=False)
    assert await watched.check() == []
    watched.rules["one"].write_text("A = 2\n")
    (line,) = await watched.check()
    assert line.endswith("/rules.py has changed; restart")
    assert list(watched.changed_files()) == ["one"] == list(watched.registry.directory().changed_files)
    watched.rules["one"].write_text("A = 3\n")
    assert await watched.check() == []
    watched.rules["one"].write_text("A = 1\n")
    (line,) = await watched.check()
    assert "rules.py no longer differs" in line and watched.changed_files() == {}


async def test_a_changed_config_is_told_to_be_read_at_the_start(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reload=True)
    await watched.check()
    (tmp_path / "config.yaml").write_text("# other")
    (line,) = await watched.check()
    assert "config.yaml has changed; configs are only read at startup: restart ng_run" in line
    assert watched.reloaded == []


async def test_only_the_server_whose_code_changed_is_reloaded(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reload=True)
    await watched.check()
    watched.rules["two"].write_text("A = 2\n")
    (line,) = await watched.check()
    assert line.endswith("has changed; reloading two") and watched.reloaded == ["two"]
    assert watched.changed_files() == {} and watched.registry.directory().reloading == []
    assert await watched.check() == []


async def test_code_that_cannot_start_is_told_once_and_the_next_change_is_tried(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reload=True)
    await watched.check()
    watched.error = OperatorError("one: app.py cannot be imported: SyntaxError")
    watched.rules["one"].write_text("A =\n")
    assert (await watched.check())[-1] == (
        "one cannot start with the changed code: app.py cannot be imported: SyntaxError; its old code keeps running"
    )
    assert await watched.check() == [] and list(watched.changed_files()) == ["one"]
    watched.error = None
    watched.rules["one"].write_text("A = 5\n")
    await watched.check()
    assert watched.reloaded == ["one"] and watched.changed_files() == {}


async def test_broken_code_that_is_undone_needs_no_reload(tmp_path: Path) -> None:
    watched = Watched(tmp_path, reload=True)
    await watched.check()
    watched.error = OperatorError("one: broken")
    watched.rules["one"].write_text("A =\n")
    await watched.check()
    watched.rules["one"].write_text("A = 1\n")
    assert await watched.check() == ["one runs the code on disk again"]
    assert watched.reloaded == [] and watched.registry.directory().reloading == []


@pytest.mark.parametrize("count,words", [(1, "0.py has changed"), (8, "and 2 more have changed")])
async def test_long_lists_of_files_are_cut(tmp_path: Path, count: int, words: str) -> None:
    watched = Watched(tmp_path, reload=False)
    folder = watched.rules["one"].parent
    for number in range(count):
        (folder / f"{number}.py").write_text("A = 1\n")
    watched.registry.renew_code("one")
    watched.register("one")
    await watched.check()
    for number in range(count):
        (folder / f"{number}.py").write_text("A = 2\n")
    (line,) = await watched.check()
    assert words in line
