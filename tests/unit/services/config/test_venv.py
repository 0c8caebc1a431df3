"""Folders with their own requirements. Nothing is installed: tests/external/packages builds real environments."""

from __future__ import annotations

import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollyard.records.data_files import IMPORT_ROOT
from rollyard.records.errors import OperatorError
from rollyard.services.config import venv
from rollyard.services.config.venv import REQUIREMENTS, interpreter_for
from rollyard.services.runtime.preflight import Preflight
from tests.support.fixtures import KEYS, load_text, make_folder, server_yaml
from tests.support.stacks import colocated
from tests.support.waiting import deadline_s

FAIL = [sys.executable, "-c", r"print(*range(20), sep='\n'); raise SystemExit('ERROR: no matching distribution')"]


class Commands:
    """Fakes the commands that build an environment, and counts the builds."""

    def __init__(self) -> None:
        self.venvs: list[Path] = []
        self.installs: list[list[str]] = []
        self.fails = False
        """pip fails."""
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def run(self, command: list[str], folder: Path, problem: str) -> None:
        if "venv" in command:
            home = Path(command[-1])
            assert not home.exists()
            (home / "lib" / "python3.99" / "site-packages").mkdir(parents=True)
            (home / "bin").mkdir()
            (home / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            (home / "bin" / "python").chmod(0o755)
            self.venvs.append(home)
            self.started.set()
            assert self.go_on.wait(deadline_s())
        else:
            self.installs.append(command)
            if self.fails:
                raise OperatorError(problem)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    commands = Commands()
    monkeypatch.setattr(venv, "run_or_refuse", commands.run)
    return commands


@pytest.fixture
def isolated(tmp_path: Path) -> Path:
    folder = tmp_path / "resources_servers" / make_folder(tmp_path)
    (folder / REQUIREMENTS).write_text("own_package==1.0\n")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def environments(cache: Path) -> list[Path]:
    return [path for path in (cache / "environments").iterdir() if path.is_dir()]


def test_an_environment_has_the_requirements_and_then_the_shared_packages(
    commands: Commands, isolated: Path, cache: Path
) -> None:
    python = interpreter_for(isolated, cache)
    home = python.parent.parent
    assert environments(cache) == [home]
    (install,) = commands.installs
    assert install[0].startswith(str(commands.venvs[0])) and install[-1] == str(isolated / REQUIREMENTS)
    shared = home / "lib" / "python3.99" / "site-packages" / "rollyard-shared.pth"
    assert shared.read_text().splitlines() == [sysconfig.get_path("purelib"), str(IMPORT_ROOT)]


def test_a_failed_command_is_an_error_with_the_end_of_its_output(isolated: Path) -> None:
    with pytest.raises(OperatorError) as raised:
        venv.run_or_refuse(FAIL, isolated, "the build failed")
    assert str(raised.value).splitlines()[-5:] == ["16", "17", "18", "19", "ERROR: no matching distribution"]


def test_a_failed_build_names_the_requirements_and_leaves_no_environment(
    commands: Commands, isolated: Path, cache: Path
) -> None:
    commands.fails = True
    with pytest.raises(OperatorError, match=str(isolated / REQUIREMENTS)):
        interpreter_for(isolated, cache)
    assert environments(cache) == []


def test_a_build_after_a_failed_or_killed_one_starts_over(commands: Commands, isolated: Path, cache: Path) -> None:
    python = interpreter_for(isolated, cache)
    python.parent.parent.rename(python.parent.parent.with_name(f"{python.parent.parent.name}.building"))
    leftover = python.parent.parent.with_name(f"{python.parent.parent.name}.building-1")
    leftover.mkdir()
    assert interpreter_for(isolated, cache) == python and python.exists()
    assert environments(cache) == [python.parent.parent]


def test_two_simultaneous_requests_share_one_build(commands: Commands, isolated: Path, cache: Path) -> None:
    commands.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(interpreter_for, isolated, cache)
        assert commands.started.wait(deadline_s())
        second = pool.submit(interpreter_for, isolated, cache)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        commands.go_on.set()
        assert first.result(deadline_s()) == second.result(deadline_s())
    assert len(commands.venvs) == 1


@pytest.mark.parametrize("changed", ["the requirements", "the installation", "Python"])
def test_an_environment_is_used_only_for_the_same_requirements_installation_and_python(
    commands: Commands, isolated: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    before = interpreter_for(isolated, cache)
    assert interpreter_for(isolated, cache) == before and len(commands.venvs) == 1
    if changed == "the requirements":
        (isolated / REQUIREMENTS).write_text("own_package==2.0\n")
    elif changed == "the installation":
        monkeypatch.setattr(venv, "IMPORT_ROOT", cache)
    else:
        monkeypatch.setattr(sys, "version", "3.99")
    assert interpreter_for(isolated, cache) != before
    assert len(commands.venvs) == 2


async def test_a_colocated_stack_rejects_such_a_folder(isolated: Path, tmp_path: Path) -> None:
    config = load_text(tmp_path, server_yaml(isolated.name))
    assert config.servers[0].isolated
    with pytest.raises(OperatorError, match="environment") as raised:
        async with colocated(config, tmp_path):
            pass
    assert "colocate" in str(raised.value)


@pytest.mark.usefixtures("commands")
async def test_a_dry_run_checks_the_settings_of_an_isolated_server(isolated: Path, cache: Path, tmp_path: Path) -> None:
    preflight = Preflight(load_text(tmp_path, server_yaml(isolated.name, "{spead: 5}")).servers, KEYS, {})
    with pytest.raises(OperatorError, match=r"'spead'.*'speed'"):
        await preflight.check(cache, head=None, colocate=False)
    await preflight.close()
