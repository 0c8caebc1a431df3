from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
MAIN = VERSIONS[0]
"""The version for tests that need only one."""


@cache
def find_python(version: str) -> Path:
    """Raises RuntimeError if there is none, so that no version is silently left untested."""
    for path in _candidates(version):
        if _version_of(path) == version:
            return path
    raise RuntimeError(
        f"no Python {version} found (looked at this one, the PATH, pyenv and uv). "
        f"Install it, for example with `uv python install {version}`"
    )


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys._base_executable)  # type: ignore[attr-defined]
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    if (pyenv := _output("pyenv", "root")) is not None:
        yield from sorted(Path(pyenv).glob(f"versions/{version}.*/bin/python"))
    if (found := _output("uv", "python", "find", "--no-project", version)) is not None:
        yield Path(found)
    if _output("uv", "python", "install", version) is not None and (
        found := _output("uv", "python", "find", "--no-project", "--managed-python", version)
    ):
        yield Path(found)


def _version_of(python: Path) -> str | None:
    # pyenv's shims also exist for versions that are not selected; those fail.
    return _output(str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
