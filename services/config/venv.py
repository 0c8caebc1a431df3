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
from collections.abc import Mapping
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.search_path import IMPORT_ROOT

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
    home = cache / "environments" / f"{folder.name}-{key}"
    python = home / "bin" / "python"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not python.exists():
            _build(home, folder)
    return python


def _build(home: Path, folder: Path) -> None:
    # This process holds the lock, so an existing build folder is left over from a build that was killed.
    for leftover in home.parent.glob(f"{home.name}.building*"):
        shutil.rmtree(leftover, ignore_errors=True)
    building = home.with_name(f"{home.name}.building")
    try:
        _run([sys.executable, "-m", "venv", str(building)], folder)
        site = next(building.glob("lib/python*/site-packages"))
        # This path comes after the environment's own packages, which therefore take precedence.
        (site / "rollyard-shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n{IMPORT_ROOT}\n")
        pip = [str(building / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", "-r", str(folder / REQUIREMENTS)], folder)
        building.rename(home)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last = "\n".join((result.stdout + result.stderr).splitlines()[-5:])
        requirements = folder / REQUIREMENTS
        raise OperatorError(f"the virtual environment of {folder.name} ({requirements}) cannot be built:\n{last}")
