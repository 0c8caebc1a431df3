"""The sandbox works with a Python that other users cannot reach: root's own, below a closed home folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.roots import INSTALLED
from services.sandbox.inside import kernel
from services.sandbox.records import Limits
from services.sandbox.sandbox import Sandbox
from tests.services.sandbox.starting import started_or_skipped
from tests.services.sandbox.trying import tried

LATER = "import colorsys, ctypes, json.tool, encodings.idna, xml.dom.minidom\n"
"""Modules that no zygote has loaded: single ones, one with a shared library, and some of packages that are loaded."""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="another user's Python is of no use to this user")


@pytest.fixture(scope="module")
def closed_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that only root may enter, with a Python in it."""
    home = tmp_path_factory.mktemp("home")
    library = Path(sysconfig.get_path("stdlib"))
    program = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    (home / "bin").mkdir()
    shutil.copy2(program, home / "bin" / program.name)
    left_out = shutil.ignore_patterns("__pycache__", "site-packages", "dist-packages", "test", "tests", "config-*")
    shutil.copytree(library, home / "lib" / library.name, ignore=left_out, symlinks=True)
    for shared in library.parent.glob("libpython*.so*"):
        shutil.copy2(shared, home / "lib" / shared.name)
    (home / "python").symlink_to(home / "bin" / program.name)
    home.chmod(0o700)
    yield home
    shutil.rmtree(home)


@needs_root
@pytest.mark.parametrize("bubblewrap", ["", None])
async def test_root_can_use_a_python_that_only_root_can_reach(closed_home: Path, bubblewrap: str | None) -> None:
    sandbox = Sandbox(Limits(cpu_s=2, wall_s=6), bubblewrap=bubblewrap, python=str(closed_home / "python"))
    await started_or_skipped(sandbox)
    try:
        code = f"{LATER}import os\ndef f(): return colorsys.__file__, os.geteuid()"
        outcome = await tried(sandbox, code, "assert f()[1] != 0")
        assert outcome.passed, outcome
        leaves = (
            f"import os\nos.chdir('/')\ntry: print('ESCAPED', os.listdir({str(closed_home)!r}))\nexcept OSError: pass"
        )
        assert (await tried(sandbox, f"{leaves}\ndef f(): pass")).output == ""
    finally:
        await sandbox.stop()


@needs_root
def test_root_that_may_not_change_its_user_gets_one_line_with_the_remedy() -> None:
    command = [sys.executable, "-c", "from services.cli.doctor import main; main()", "sandbox"]
    done = subprocess.run(command, cwd=INSTALLED, capture_output=True, text=True, preexec_fn=kernel.drop_capabilities)
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("\n") == 1, done.stdout
    assert "start as an ordinary user, or allow CAP_SETUID and CAP_SETGID" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_relative_path_names_the_python_from_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.sandbox.python import find_python

    monkeypatch.chdir(Path(sys.executable).parent)
    assert find_python(f"./{Path(sys.executable).name}").program == find_python().program
