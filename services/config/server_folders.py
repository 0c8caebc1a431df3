"""Finds a server's folder. Users' own folders need not be registered; those in an installed package are entry points.

It imports no server, so that commands which start none begin at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.io.search_path import INSTALLED

FAMILIES = ("resources_servers", "responses_api_models", "agents")
ALIASES = {"responses_api_agents": "agents"}
"""NeMo Gym's name for a family -> Rollyard's name for it."""

ENTRY_POINTS = "rollyard.server_roots"
"""Group of the entry points with which installed packages add folders to the search path. The value of one is the name
of a package whose folder contains `resources_servers`, `agents` or `responses_api_models`."""

log = logging.getLogger("rollyard.plugins")


def search_roots(here: Path, server_roots: Iterable[str | Path] = ()) -> list[Path]:
    """Return the folders in which servers, configs and data are searched for, in order: `here`, `server_roots`, the
    folders of installed packages, and Rollyard's own.
    """
    given = (Path(root).resolve() for root in server_roots)
    return list(dict.fromkeys([here, *given, *_roots_of_packages(tuple(sys.path)), INSTALLED]))


@cache
def _roots_of_packages(_sys_path: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the folders of all entry points. One that is invalid is reported, and does not affect the others."""
    roots: list[Path] = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: (point.name, point.value)):
        try:
            roots.append(_root_of_package(point))
        except OperatorError as error:
            log.warning("%s", error)
    return tuple(roots)


def _root_of_package(point: EntryPoint) -> Path:
    """Return the folder of the package that the entry point names. The package is not imported."""
    top, *rest = point.value.split(".")
    distribution = "a package" if point.dist is None else point.dist.name
    try:
        spec = find_spec(top)  # of a.b, it would import a
        locations = [] if spec is None else spec.submodule_search_locations or []
    except Exception as error:  # the finder of an editable installation is code of the package
        locations, why = [], f": {type(error).__name__}: {error}"
    else:
        why = ""
    folders = [folder for location in locations if (folder := Path(location, *rest)).is_dir()]
    names = [name for family in FAMILIES for name in folder_names(family)]
    for folder in folders:
        if any((folder / name).is_dir() for name in names):
            return folder.resolve()
    found = f"its folder is {folders[0]}" if folders else f"there is no such package{why}"
    raise OperatorError(
        f"{distribution}: the entry point {point.name} = {point.value!r} in {ENTRY_POINTS} is ignored: {found}; "
        f"expected the name of a package whose folder contains one of {', '.join(names)}"
    )


def folder_names(family: str) -> list[str]:
    """Return the names that a family's folder may have."""
    return [family, *(alias for alias, name in ALIASES.items() if name == family)]


def find_folders(family: str, implementation: str, roots: Sequence[Path]) -> list[Path]:
    """Return `family/implementation` in each root that contains it, in the order in which they are preferred."""
    folders = [root / name / implementation for root in roots for name in folder_names(family)]
    folders = [folder for folder in folders if folder.is_dir()]
    # A folder without Python files, such as one with data or results next to a config, is not a server.
    preferred = [*(folder for folder in folders if any(folder.glob("*.py"))), *folders]
    return list(dict.fromkeys(folder.resolve() for folder in preferred))


def find_folder(family: str, implementation: str, roots: Sequence[Path]) -> Path:
    """Return `family/implementation` in the first root that contains it. Raises OperatorError if none does."""
    if folders := find_folders(family, implementation, roots):
        return folders[0]
    candidates = [root / name for root in roots for name in folder_names(family)]
    known = sorted(
        {child.name for folder in candidates if folder.is_dir() for child in folder.iterdir() if child.is_dir()}
    )
    hint = did_you_mean(implementation, known)
    searched = ", ".join(str(root) for root in roots)
    raise OperatorError(f"no folder {family}/{implementation}{hint} (looked in {searched})")
