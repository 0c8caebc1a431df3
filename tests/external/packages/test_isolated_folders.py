"""Folders with their own requirements: real environments, built by pip. All tests here share one."""

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

from rollyard.records.errors import OperatorError
from rollyard.services.config import venv
from rollyard.services.config.venv import REQUIREMENTS, interpreter_for
from rollyard.services.http.transport import HttpTransport
from tests.support.fixtures import load_text, make_folder, send, server_yaml
from tests.support.stacks import processes

APP = """
import iniconfig
import own_package
from importlib.metadata import version
from rollyard.services.server.app import Server, ServerSettings

class Settings(ServerSettings):
    speed: int = 1

class Isolated(Server):
    Settings = Settings

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.app.get("/versions")(self.package_versions)

    async def package_versions(self):
        return {"own_package": own_package.WORD, "iniconfig": version("iniconfig"), "speed": self.settings.speed}

server = Isolated
"""


def wheel(folder: Path, name: str, number: str, text: str) -> Path:
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
    """A folder whose environment failed to build once, then was built by two threads at the same time."""

    def __init__(self, root: Path, built_homes: list[Path]) -> None:
        self.root, self.cache = root, root / "cache"
        self.name = make_folder(root, app=APP)
        self.folder = root / "resources_servers" / self.name
        wheels = [self.folder / "own_package-1.0-py3-none-any.whl", self.folder / "iniconfig-99.0-py3-none-any.whl"]
        (self.folder / REQUIREMENTS).write_text("".join(f"{path}\n" for path in wheels))
        self.error = self._failed_build()
        self.left_by_failure = self.environments()
        (lock,) = (self.cache / "environments").glob("*.lock")
        self.killed_build = lock.with_name(f"{lock.stem}.building-1")  # what kill -9 leaves behind
        self.killed_build.mkdir()
        wheel(self.folder, "own_package", "1.0", "WORD = 'private'\n")
        wheel(self.folder, "iniconfig", "99.0", "")
        barrier = threading.Barrier(2)

        def build_together() -> Path:
            barrier.wait()
            return interpreter_for(self.folder, self.cache)

        built_homes.clear()
        with ThreadPoolExecutor(2) as pool:
            self.pythons = [future.result() for future in [pool.submit(build_together), pool.submit(build_together)]]
        self.builds = len(built_homes)

    def _failed_build(self) -> str:
        with pytest.raises(OperatorError) as raised:
            interpreter_for(self.folder, self.cache)
        return str(raised.value)

    def environments(self) -> list[str]:
        return sorted(path.name for path in (self.cache / "environments").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    built_homes: list[Path] = []
    real = venv.run_or_refuse

    def counting_run(command: list[str], folder: Path, problem: str) -> None:
        if "venv" in command:
            built_homes.append(Path(command[-1]))
        real(command, folder, problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(venv, "run_or_refuse", counting_run)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        root = tmp_path_factory.mktemp("isolated")
        yield Built(root, built_homes)
        shutil.rmtree(root / "cache")


def output_of(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_failed_build_reports_the_folder_and_pips_output(built: Built) -> None:
    assert built.name in built.error and REQUIREMENTS in built.error
    assert "own_package-1.0-py3-none-any.whl" in built.error and "ERROR" in built.error


def test_a_failed_build_leaves_no_partial_environment(built: Built) -> None:
    assert built.left_by_failure == []


def test_two_simultaneous_requests_share_one_build(built: Built) -> None:
    assert built.pythons[0] == built.pythons[1] and built.builds == 1


def test_the_next_build_removes_what_a_killed_build_left(built: Built) -> None:
    assert not built.killed_build.exists()


def test_the_environment_has_a_package_that_the_shared_environment_lacks(built: Built) -> None:
    with pytest.raises(ModuleNotFoundError):
        __import__("own_package")
    assert output_of(built.pythons[0], "import own_package; print(own_package.WORD)") == "private"


def test_the_folders_requirement_takes_precedence_and_the_shared_package_stays(built: Built) -> None:
    code = "from importlib.metadata import version; print(version('iniconfig'))"
    assert output_of(built.pythons[0], code) == "99.0" and version("iniconfig") != "99.0"


def test_the_shared_packages_are_visible_in_the_environment(built: Built) -> None:
    assert output_of(
        built.pythons[0], "import pydantic, rollyard.services.runtime.serve; print(pydantic.VERSION)"
    ) == version("pydantic")


async def test_a_stack_of_processes_runs_a_server_in_its_own_environment(built: Built) -> None:
    config = load_text(built.root, server_yaml(built.name, "{speed: 5}"))
    assert config.servers[0].isolated
    async with processes(config, built.root) as stack:
        (url,) = stack.registry.directory().servers["environment"]
        transport = HttpTransport()
        versions = orjson.loads((await send(transport, url + "/versions", b"", "GET")).body)
        await transport.close()
    assert versions == {"own_package": "private", "iniconfig": "99.0", "speed": 5}
