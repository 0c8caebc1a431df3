"""The sandbox works with a Python that only root can reach, below a private home folder."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.services.sandbox.inside import libc
from rollyard.services.sandbox.python_runtime import find_python, loader_of
from rollyard.services.sandbox.records import SandboxLimits
from rollyard.services.sandbox.sandbox import Sandbox
from tests.unit.services.sandbox.trials import run_trial

LATE_IMPORTS = "import colorsys, ctypes, json.tool, encodings.idna, xml.dom.minidom\n"
"""Modules that the zygote has not loaded: single ones, one with a shared library, and parts of loaded packages."""
START = """
import asyncio, sys
from rollyard.records.errors import OperatorError
from rollyard.services.sandbox.records import SandboxLimits
from rollyard.services.sandbox.sandbox import Sandbox
try:
    asyncio.run(Sandbox(SandboxLimits()).start())
except OperatorError as error:
    print(error)
    sys.exit(3)
"""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can use a Python that is private to root")


@pytest.fixture(scope="module")
def private_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python in a folder that only root may enter, with the layout of uv."""
    home = tmp_path_factory.mktemp("home")
    library = Path(sysconfig.get_path("stdlib"))
    program = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    prefix = home / "cpython-3.x.y"
    (prefix / "bin").mkdir(parents=True)
    shutil.copy2(program, prefix / "bin" / program.name)
    ignored = shutil.ignore_patterns(
        "site-packages", "dist-packages", "test", "tests", "config-*", "idlelib", "tkinter"
    )
    shutil.copytree(library, prefix / "lib" / library.name, ignore=ignored, symlinks=True)
    for shared in library.parent.glob("libpython*.so*"):
        shutil.copy2(shared, prefix / "lib" / shared.name)
    # The version is a link to the patch release.
    (home / "cpython-3.x").symlink_to(prefix)
    (home / "secret").write_text("ESCAPED")
    home.chmod(0o700)
    yield home / "cpython-3.x" / "bin" / program.name
    shutil.rmtree(home)


@needs_root
async def test_root_can_use_a_python_that_only_root_can_reach(private_python: Path, any_sandbox: Sandbox) -> None:
    bubblewrap = None if any_sandbox.layers.mode == "landlock" else ""
    sandbox = Sandbox(SandboxLimits(cpu_s=2, wall_s=6), bubblewrap=bubblewrap, python=str(private_python))
    await sandbox.start()
    try:
        assert sandbox.layers.mode == any_sandbox.layers.mode, sandbox.layers.missing
        code = f"{LATE_IMPORTS}import os\ndef f(): return colorsys.__file__, os.geteuid()"
        outcome = await run_trial(sandbox, code, "assert f()[1] != 0")
        assert outcome.passed, outcome
        secret = private_python.parents[2] / "secret"
        reads = f"import os\nos.chdir('/')\ntry: print(open({str(secret)!r}).read())\nexcept OSError: pass\n"
        assert (await run_trial(sandbox, f"{reads}def f(): pass")).output == ""
    finally:
        await sandbox.stop()


@needs_root
def test_root_without_setuid_capabilities_gets_one_line_with_the_remedy() -> None:
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, cwd=INSTALLED, capture_output=True, text=True, preexec_fn=libc.drop_capabilities)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.count("\n") == 1, done.stdout
    assert "CAP_SETUID" in done.stdout and "CAP_SETGID" in done.stdout


def test_a_relative_path_is_resolved_from_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(sys.executable).parent)
    assert find_python(f"./{Path(sys.executable).name}").program == find_python().program


def test_the_loader_is_found_anywhere_in_the_program_file(tmp_path: Path) -> None:
    """Tools that relocate a Python write its program headers to the end of the file."""
    offset, name = 70_000, b"/lib64/ld-linux-x86-64.so.2\0"
    head = b"\x7fELF\x02".ljust(32, b"\0") + struct.pack("=Q", offset) + bytes(14) + struct.pack("=HH", 56, 1)
    entry = struct.pack("=IIQQQQ", 3, 0, offset + 56, 0, 0, len(name)).ljust(56, b"\0")
    program = tmp_path / "python"
    program.write_bytes(head.ljust(offset, b"\0") + entry + name)
    assert loader_of(program) == Path("/lib64/ld-linux-x86-64.so.2")
