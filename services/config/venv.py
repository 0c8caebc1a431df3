"""Builds a separate virtual environment for a server whose folder contains `requirements-isolated.txt`.

Environments are cached per user under a hash of that file. Each is built once, under a lock, and becomes visible
atomically. Rollyard's own packages are importable in it, but the folder's requirements take precedence.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

from rollyard.records.data_files import IMPORT_ROOT
from rollyard.records.errors import OperatorError

REQUIREMENTS = "requirements-isolated.txt"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return Rollyard's folder in the user's cache directory."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollyard"


def needs_isolation(folder: Path) -> bool:
    """Return True if the server's folder requires packages that must not be installed in the shared environment."""
    return (folder / REQUIREMENTS).is_file()


def interpreter_for(folder: Path, cache: Path) -> Path:
    """Return the folder's interpreter, building its environment if needed. Raises OperatorError if pip fails."""
    requirements = (folder / REQUIREMENTS).read_bytes()
    # The key includes Rollyard's path, which the environment refers to: an editable install may change its checkout.
    parts = (sys.version, sys.prefix, str(IMPORT_ROOT))
    key = hashlib.sha256(requirements + "\0".join(parts).encode()).hexdigest()[:16]
    problem = f"the virtual environment of {folder.name} ({folder / REQUIREMENTS}) cannot be built"

    def build(building: Path) -> None:
        run_or_refuse([sys.executable, "-m", "venv", str(building)], folder, problem)
        site = next(building.glob("lib/python*/site-packages"))
        # This path comes after the environment's own packages, which therefore take precedence.
        (site / "rollyard-shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n{IMPORT_ROOT}\n")
        pip = [str(building / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check"]
        run_or_refuse([*pip, "install", "--quiet", "-r", str(folder / REQUIREMENTS)], folder, problem)

    return built_once(cache / "environments" / f"{folder.name}-{key}", build)


def built_once(home: Path, build: Callable[[Path], None]) -> Path:
    """Return the interpreter of the environment `home`. If it does not exist, `build` makes it in the given folder."""
    python, building = home / "bin" / "python", home.with_name(f"{home.name}.building")
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python.exists():
            return python
        # This process holds the lock, so what exists is left over from builds that were killed.
        for leftover in (home, *home.parent.glob(f"{building.name}*")):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            build(building)
            building.rename(home)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return python


def run_or_refuse(
    command: list[str], folder: Path, problem: str, text: str = "", environ: Mapping[str, str] | None = None
) -> None:
    """Run a command in `folder` with `text` as its input. Raises OperatorError with the end of its output."""
    result = subprocess.run(
        command, cwd=folder, input=text, capture_output=True, text=True, check=False, env=environ and dict(environ)
    )
    if result.returncode != 0:
        last = "\n".join((result.stdout + result.stderr).splitlines()[-8:])
        raise OperatorError(f"{problem}:\n{last}")
