"""Which files on disk count as changes, and when changes are reported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rollyard.services.config.plugins import load_server
from rollyard.services.config.server_code.code_version import LoadedCode, loaded_code
from rollyard.services.config.server_code.disk import REMOVED, CodeOnDisk, DiskChanges
from rollyard.services.config.server_code.file_digest import file_digest
from rollyard.services.config.server_folders import FAMILIES
from tests.support.fixtures import PLAIN_APP, make_folder


def loaded(folder: Path) -> LoadedCode:
    kind = load_server("resources_servers", folder, "app.py")
    return loaded_code(folder, kind, FAMILIES, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    app = f"{PLAIN_APP}\nfrom .rules import A\nLEVELS = 'levels.json'\n"
    folder = tmp_path / "resources_servers" / make_folder(tmp_path, app=app, rules="A = 1\n")
    (folder / "levels.json").write_text("[1]")
    (folder / "prepare.py").write_text("if __name__ == '__main__':\n    print(1)\n")
    return folder


@pytest.fixture
def disk(folder: Path) -> CodeOnDisk:
    disk = CodeOnDisk({})
    disk.follow("environment", *loaded(folder))
    assert settled(disk) == DiskChanges()
    return disk


def settled(disk: CodeOnDisk) -> DiskChanges | None:
    """What the second scan reports; a change is reported once two scans find the same files."""
    disk.poll()
    return disk.poll()


def files(changes: DiskChanges | None) -> list[str]:
    assert changes is not None
    return sorted(Path(name).name for name in changes.servers.get("environment", {}))


@pytest.mark.parametrize("name", ["app.py", "rules.py", "levels.json", "new.py", "deep/new.py"])
def test_a_changed_file_that_the_server_uses_is_reported_once(disk: CodeOnDisk, folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    with (folder / name).open("a") as file:
        file.write("\n# more")
    assert files(settled(disk)) == [Path(name).name]
    assert disk.poll() is None


@pytest.mark.parametrize("name", ["prepare.py", "other_script.py", "test_app.py", "notes.md", "tests/test_rules.py"])
def test_a_file_that_the_server_does_not_use_is_not_reported(disk: CodeOnDisk, folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("if __name__ == '__main__':\n    print(2)\n")
    assert settled(disk) in (None, DiskChanges())


def test_nothing_is_reported_while_files_are_being_written(disk: CodeOnDisk, folder: Path) -> None:
    for number in range(3):
        (folder / "rules.py").write_text("# more\n" * number)
        assert disk.poll() is None
    assert files(disk.poll()) == ["rules.py"]


def test_a_reverted_change_is_no_longer_reported(disk: CodeOnDisk, folder: Path) -> None:
    (folder / "rules.py").write_text("A = 2\n")
    (folder / "new.py").write_text("B = 2\n")
    (folder / "levels.json").unlink()
    changes = settled(disk)
    assert files(changes) == ["levels.json", "new.py", "rules.py"]
    assert changes is not None and REMOVED in changes.servers["environment"].values()
    (folder / "rules.py").write_text("A = 1\n")
    (folder / "new.py").unlink()
    (folder / "levels.json").write_text("[1]")
    assert settled(disk) == DiskChanges()


def test_a_change_that_keeps_the_files_size_and_time_is_detected(disk: CodeOnDisk, folder: Path) -> None:
    before = (folder / "rules.py").stat()
    (folder / "rules.py").write_text("A = 2\n")
    os.utime(folder / "rules.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files(settled(disk)) == ["rules.py"]


def test_a_touched_file_is_not_a_change(disk: CodeOnDisk, folder: Path) -> None:
    (folder / "rules.py").touch()
    assert settled(disk) == DiskChanges()


def test_a_removed_folder_is_reported_with_its_files(disk: CodeOnDisk, folder: Path) -> None:
    shutil.rmtree(folder)
    assert files(settled(disk)) == ["app.py", "levels.json", "rules.py"]


def test_every_file_of_the_registered_code_is_found_on_disk(folder: Path) -> None:
    code, sources = loaded(folder)
    assert {name: file_digest(Path(path)) for name, path in sources.paths.items()} == code.files


def test_code_that_changed_between_its_load_and_the_first_look_is_reported(folder: Path) -> None:
    disk = CodeOnDisk({})
    found = loaded(folder)
    (folder / "rules.py").write_text("A = 2\n")
    disk.follow("environment", *found)
    assert files(settled(disk)) == ["rules.py"]


def test_a_reloaded_server_is_compared_with_its_new_code(disk: CodeOnDisk, folder: Path) -> None:
    (folder / "rules.py").write_text("A = 2\n")
    assert files(settled(disk)) == ["rules.py"]
    disk.follow("environment", *loaded(folder))
    assert disk.poll() == DiskChanges()


def test_changed_and_new_configs_are_reported(tmp_path: Path) -> None:
    config, local = tmp_path / "config.yaml", tmp_path / "env.yaml"
    config.write_text("a: 1")
    disk = CodeOnDisk({path: file_digest(path) for path in (config, local)})
    assert settled(disk) == DiskChanges()
    config.write_text("a: 2")
    local.write_text("b: 1")
    assert settled(disk) == DiskChanges(configs=frozenset({config, local}))
