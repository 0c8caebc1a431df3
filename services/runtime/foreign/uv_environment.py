"""Installs the packages that a NeMo Gym server's folder requires into a virtual environment of its own, with uv.

Environments are cached per user under a hash of the requirements, like those of `services/config/venv.py`.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.services.config.nemo_gym.folders import installed_version
from rollyard.services.config.run_config import ForeignProgram

log = logging.getLogger(__name__)

DEFAULT_PYTHON = "3.12"
_RELATIVE = re.compile(r"(?:^|[\s@=])(?:file:)?\.\.?/|^-e\s+\.", re.IGNORECASE)
"""A path relative to the requirements file, as in `-e nemo-gym[dev] @ ../../`."""
_ROOT = re.compile(r"(?:(?:-e|--editable)[\s=]\s*)?(?:file:)?\.\./\.\./?(?:\[[^\]]*\])?(?:\s+#.*)?")
"""The root of the checkout, seen from the server's folder."""
_ITSELF = re.compile(r"^(?:-e\s+|--editable[\s=])?nemo[-_]gym(?:\[[^\]]*\])?\s*(?:@|$|[=<>!~;])", re.IGNORECASE)


def requirement_lines(text: str) -> list[str]:
    """Return the lines of a requirements file except those that refer to NeMo Gym itself by a relative path.

    Some of NeMo Gym's files lack a line break after a package, so that this reference follows it on the same line.
    """
    text = re.sub(r"(?<=[\w\]])\s*-e nemo-gym\[", "\n-e nemo-gym[", text.removeprefix("\ufeff"))
    return [
        line for line in map(str.strip, text.splitlines()) if line and not (_is_itself(line) and _RELATIVE.search(line))
    ]


def _is_itself(line: str) -> bool:
    return bool(_ITSELF.match(line) or _ROOT.fullmatch(line))


def install(folder: Path, program: ForeignProgram, cache: Path, environ: Mapping[str, str]) -> Path:
    """Return the interpreter of the server's environment, which is built if needed.

    Raises OperatorError if uv fails.
    """
    uv = shutil.which("uv", path=environ.get("PATH"))
    if uv is None:
        raise OperatorError(f"install: uv needs the program uv for {folder}, and it is not on PATH; pip install uv")
    arguments, listed = _arguments(folder, program.root)
    base = str(program.python or DEFAULT_PYTHON)
    key = hashlib.sha256("\0".join([base, str(folder), *arguments, listed]).encode()).hexdigest()[:16]
    home = cache / "environments" / f"nemo-gym-{folder.name}-{key}"
    python = home / "bin" / "python"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not python.exists():
            _build(uv, home, base, folder, arguments, listed, environ)
    return python


def _arguments(folder: Path, root: Path) -> tuple[list[str], str]:
    """Return the arguments of `uv pip install`, and the requirements that it reads from standard input."""
    if (root / "pyproject.toml").is_file():
        itself = [f"-e {root}"]
    else:
        version = installed_version(root)
        itself = [f"nemo-gym=={version}" if version else "nemo-gym"]
    project, requirements = folder / "pyproject.toml", folder / "requirements.txt"
    if requirements.is_file():
        lines = requirement_lines(requirements.read_text("utf-8", "replace"))
        return ["-r", "-"], "\n".join([*itself, *lines, ""])
    if project.is_file():
        return ["--no-sources", "-r", str(project), "-r", "-"], "\n".join([*itself, ""])
    return ["-r", "-"], "\n".join([*itself, ""])


def _build(
    uv: str, home: Path, base: str, folder: Path, arguments: list[str], listed: str, environ: Mapping[str, str]
) -> None:
    # This process holds the lock, so an existing folder without a link to it is left over from a build that was killed.
    log.warning("uv installs the requirements of %s into %s, which may take minutes", folder, home)
    building = home.with_name(f"{home.name}.building")
    for leftover in (building, home):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        _run([uv, "venv", "--quiet", "--relocatable", "--python", base, str(building)], folder, "", environ)
        command = [uv, "pip", "install", "--quiet", "--python", str(building / "bin" / "python"), *arguments]
        _run(command, folder, listed, environ)
        building.rename(home)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _run(command: list[str], folder: Path, text: str, environ: Mapping[str, str]) -> None:
    result = subprocess.run(
        command, cwd=folder, input=text, capture_output=True, text=True, check=False, env=dict(environ)
    )
    if result.returncode != 0:
        last = "\n".join((result.stdout + result.stderr).splitlines()[-8:])
        raise OperatorError(f"uv cannot install the requirements of {folder}:\n{last}")
