"""Finds the packages that a server declares, with their installed versions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def declared_packages(folder: Path, extras: Iterable[str]) -> dict[str, str]:
    """Return name -> version of the installed packages that the folder's requirements or Rollyard's `extras` list."""
    lines = [line for file in ("requirements.txt", "requirements-isolated.txt") for line in _lines(folder / file)]
    lines += _project_dependencies(folder / "pyproject.toml")
    if markers := [f'extra == "{extra}"' for extra in extras]:
        lines += [
            line for line in _rollyard_requirements() if any(marker in line.replace("'", '"') for marker in markers)
        ]
    found = {}
    for name in (match[1] for line in lines if (match := _NAME.match(line))):
        try:
            found[re.sub(r"[-_.]+", "-", name).lower()] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return dict(sorted(found.items()))


def _lines(path: Path) -> Iterator[str]:
    if path.is_file():
        yield from path.read_text("utf-8", "replace").splitlines()


def _project_dependencies(path: Path) -> list[str]:
    try:
        found = tomllib.loads(path.read_text("utf-8")).get("project", {}).get("dependencies", [])
    except (OSError, ValueError, AttributeError):
        return []
    return [line for line in found if isinstance(line, str)] if isinstance(found, list) else []


def _rollyard_requirements() -> list[str]:
    try:
        return metadata.requires("rollyard") or []
    except metadata.PackageNotFoundError:
        return []
