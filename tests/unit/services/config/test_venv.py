"""A folder with requirements of its own. One environment is built for all tests here: building takes seconds."""

from __future__ import annotations

import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest

from rollyard.services.config import venv
from rollyard.services.config.venv import REQUIREMENTS, interpreter_for, needs_isolation
from rollyard.services.errors import OperatorError
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.preflight import Preflight
from tests.support.fixtures import KEYS, load_text, make_folder, send, yaml_of
from tests.support.stacks import colocated, processes

APP = """
import iniconfig
import lonely
from importlib.metadata import version
from rollyard.services.server.app import Server, ServerSettings

class Settings(ServerSettings):
    speed: int = 1

class Alone(Server):
    Settings = Settings

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.app.get("/versions")(self.versions)

    async def versions(self):
        return {"lonely": lonely.WORD, "iniconfig": version("iniconfig"), "speed": self.settings.speed}

server = Alone
"""


def wheel(folder: Path, name: str, number: str, text: str) -> Path:
    """The smallest wheel there is."""
    info = f"{name}-{number}.dist-info"
    path = folder / f"{name}-{number}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


class Built:
    """A folder whose environment failed to build once, then was built by two at the same time."""

    def __init__(self, root: Path, counted: list[Path]) -> None:
        self.root, self.cache = root, root / "cache"
        self.name = make_folder(root, app=APP)
        self.folder = root / "resources_servers" / self.name
        wheels = [self.folder / "lonely-1.0-py3-none-any.whl", self.folder / "iniconfig-99.0-py3-none-any.whl"]
        (self.folder / REQUIREMENTS).write_text("".join(f"{path}\n" for path in wheels))
        self.refusal = self._refusal()
        self.left_by_failure = self.environments()
        (lock,) = (self.cache / "environments").glob("*.lock")
        self.killed = lock.with_name(f"{lock.stem}.building-1")  # as a kill -9 in the middle leaves it
        self.killed.mkdir()
        wheel(self.folder, "lonely", "1.0", "WORD = 'alone'\n")
        wheel(self.folder, "iniconfig", "99.0", "")
        gate = threading.Barrier(2)

        def build() -> Path:
            gate.wait()
            return interpreter_for(self.folder, self.cache)

        counted.clear()
        with ThreadPoolExecutor(2) as pool:
            self.pythons = [future.result() for future in [pool.submit(build), pool.submit(build)]]
        self.builds = len(counted)

    def _refusal(self) -> str:
        with pytest.raises(OperatorError) as raised:
            interpreter_for(self.folder, self.cache)
        return str(raised.value)

    def environments(self) -> list[str]:
        return sorted(path.name for path in (self.cache / "environments").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    counted: list[Path] = []
    real = venv._build

    def counting(home: Path, folder: Path) -> None:
        counted.append(home)
        real(home, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(venv, "_build", counting)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        root = tmp_path_factory.mktemp("isolated")
        yield Built(root, counted)
        shutil.rmtree(root / "cache")


def said(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_folder_asks_for_isolation_with_a_file(tmp_path: Path) -> None:
    assert not needs_isolation(tmp_path)
    (tmp_path / REQUIREMENTS).touch()
    assert needs_isolation(tmp_path)


def test_a_failed_build_reports_pips_output_and_the_folder(built: Built) -> None:
    assert built.name in built.refusal and REQUIREMENTS in built.refusal
    assert "lonely-1.0-py3-none-any.whl" in built.refusal and "ERROR" in built.refusal


def test_a_build_that_fails_leaves_nothing_half_made(built: Built) -> None:
    assert built.left_by_failure == []


def test_two_that_ask_at_the_same_time_get_one_environment_built_once(built: Built) -> None:
    assert built.pythons[0] == built.pythons[1] and built.builds == 1


def test_the_next_build_removes_leftovers_of_a_killed_build(built: Built) -> None:
    assert not built.killed.exists()


def test_an_environment_that_is_there_is_used_again(built: Built) -> None:
    before = built.pythons[0].lstat()
    assert interpreter_for(built.folder, built.cache).lstat() == before and built.builds == 1


def test_a_stack_that_was_installed_from_elsewhere_has_an_environment_of_its_own(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(venv, "IMPORT_ROOT", tmp_path)
    monkeypatch.setattr(venv, "_build", lambda home, folder: None)
    assert interpreter_for(built.folder, built.cache) != built.pythons[0]


def test_the_environment_has_a_package_that_the_shared_one_lacks(built: Built) -> None:
    with pytest.raises(ModuleNotFoundError):
        __import__("lonely")
    assert said(built.pythons[0], "import lonely; print(lonely.WORD)") == "alone"


def test_the_folders_requirement_wins_over_the_shared_package_which_stays(built: Built) -> None:
    code = "from importlib.metadata import version; print(version('iniconfig'))"
    assert said(built.pythons[0], code) == "99.0" and version("iniconfig") != "99.0"


def test_the_stacks_own_packages_are_visible_inside(built: Built) -> None:
    assert said(
        built.pythons[0], "import pydantic, rollyard.services.runtime.serve; print(pydantic.VERSION)"
    ) == version("pydantic")


async def test_a_stack_of_processes_runs_a_server_from_such_a_folder(built: Built) -> None:
    config = load_text(built.root, yaml_of(built.name, "{speed: 5}"))
    assert config.servers[0].isolated
    async with processes(config, built.root) as stack:
        (url,) = stack.registry.directory().servers["world"]
        transport = HttpTransport()
        told = orjson.loads((await send(transport, url + "/versions", b"", "GET")).body)
        await transport.close()
    assert told == {"lonely": "alone", "iniconfig": "99.0", "speed": 5}


async def test_a_colocated_stack_refuses_such_a_folder_and_says_why(built: Built, tmp_path: Path) -> None:
    config = load_text(built.root, yaml_of(built.name))
    with pytest.raises(OperatorError, match="its own Python environment"):
        async with colocated(config, tmp_path):
            pass


async def test_a_dry_run_asks_a_server_in_its_own_environment_what_it_lacks(built: Built) -> None:
    checked = Preflight(load_text(built.root, yaml_of(built.name, "{spead: 5}")).servers, KEYS, {})
    with pytest.raises(OperatorError, match="unknown option 'spead', did you mean 'speed'"):
        await checked.check(built.cache, head=None, colocate=False)
    await checked.close()
