"""Environments that checkouts share: made once, linked, and made again if they are damaged."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.modules import ROOT

LOCK = "one==1\n"


class Maker:
    """Makes environments of one package without pip, and counts them."""

    made = 0
    fails = False

    def __call__(self, home: Path, locks: list[str], compiled: bool) -> None:
        site = home / "lib" / "python3" / "site-packages"
        (site / "one-1.dist-info").mkdir(parents=True)
        (home / "bin").mkdir()
        (home / "bin" / "python").symlink_to(sys.executable)
        if self.fails:
            raise KeyboardInterrupt
        self.made += 1
        (home / "bin" / "one").write_text(f"#!{home}/bin/python\n")
        (home / "bin" / "one").chmod(0o755)
        (home / "pyvenv.cfg").write_text(f"command = python -m venv {home}\n")
        (site / "one.py").write_text("ONE = 1\n")
        (site / "one-1.dist-info" / "RECORD").write_text("one.py,sha256=x,8\none-1.dist-info/RECORD,,\n")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """requirements/environment.py, which is not part of any package, with a cache below `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(ROOT / "requirements"))
    spec = importlib.util.spec_from_file_location("environment", ROOT / "requirements" / "environment.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "make", Maker())
    yield module
    sys.modules.pop("subset", None)


def module_in(folder: Path) -> Path:
    return folder / "lib" / "python3" / "site-packages" / "one.py"


def test_checkouts_share_the_files_of_one_environment_and_have_scripts_of_their_own(
    environment: ModuleType, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        environment.install(tmp_path / name / ".venv", [LOCK])
    first, second = tmp_path / "a" / ".venv", tmp_path / "b" / ".venv"
    assert environment.make.made == 1
    assert module_in(first).samefile(module_in(second))
    assert (second / "bin" / "one").read_text() == f"#!{second}/bin/python\n"
    assert os.access(second / "bin" / "one", os.X_OK)
    assert str(second) in (second / "pyvenv.cfg").read_text()


@pytest.mark.parametrize("other", [[LOCK + "two==2\n"], [LOCK, "two==2\n"]])
def test_another_lock_has_another_environment(environment: ModuleType, tmp_path: Path, other: list[str]) -> None:
    environment.install(tmp_path / ".venv", [LOCK])
    environment.install(tmp_path / ".venv", other)
    assert environment.make.made == 2


def test_another_interpreter_has_another_environment(
    environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.install(tmp_path / ".venv", [LOCK])
    monkeypatch.setattr(sys, "version", "3.99")
    environment.install(tmp_path / ".venv", [LOCK])
    assert environment.make.made == 2


@pytest.mark.parametrize("damage", ["missing", "shorter", "no interpreter"])
def test_a_damaged_environment_is_made_again(environment: ModuleType, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / ".venv"
    environment.install(folder, [LOCK])
    home = next((tmp_path / "cache" / "rollyard" / "locked").glob("venv-*/"))
    if damage == "missing":
        module_in(home).unlink()
    elif damage == "shorter":
        module_in(home).write_text("ONE")  # through the link: in the checkout, too
    else:
        (home / "bin" / "python").unlink()
    environment.install(folder, [LOCK])
    assert environment.make.made == 2
    assert module_in(folder).read_text() == "ONE = 1\n"


def test_a_half_made_environment_is_made_again(environment: ModuleType, tmp_path: Path) -> None:
    environment.make.fails = True
    with pytest.raises(KeyboardInterrupt):
        environment.install(tmp_path / ".venv", [LOCK])
    environment.make.fails = False
    environment.install(tmp_path / ".venv", [LOCK])
    assert module_in(tmp_path / ".venv").exists()


def test_what_was_in_the_folder_is_replaced(environment: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / ".venv"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "old.py").touch()
    environment.install(folder, [LOCK])
    assert not (folder / "lib" / "old.py").exists()


def test_an_environment_that_was_not_used_for_two_weeks_is_removed(environment: ModuleType, tmp_path: Path) -> None:
    environment.install(tmp_path / ".venv", [LOCK])
    old = next((tmp_path / "cache" / "rollyard" / "locked").glob("venv-*/complete"))
    os.utime(old, (0, 0))
    environment.install(tmp_path / ".venv", [LOCK + "two==2\n"])
    assert not old.parent.exists()
