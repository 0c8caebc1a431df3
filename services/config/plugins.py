"""Loads a server's class from its folder."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError, did_you_mean

if TYPE_CHECKING:
    from rollyard.services.server.app import Server

PLUGINS = "rollyard_plugins"
"""Parent package of imported plug-ins that are not part of Rollyard."""


def load_server(family: str, folder: Path, entrypoint: str) -> type[Server]:
    """Return the class that the file `entrypoint` assigns to `server`. Raises OperatorError if there is none."""
    from rollyard.services.server.app import Server  # a command that only looks for files needs no FastAPI

    path = folder / entrypoint
    if not path.is_file():
        raise OperatorError(f"{path} does not exist; a server's folder must contain its entrypoint (default: app.py)")
    module = import_file(family, folder, path)
    server = getattr(module, "server", None)
    if not (isinstance(server, type) and issubclass(server, Server)):
        found = "nothing" if server is None else repr(server)
        raise OperatorError(f"{path} must assign a Server class to `server` (found {found})")
    return server


def import_file(family: str, folder: Path, path: Path) -> ModuleType:
    """Import `path`, a file of the plug-in `folder`, so that relative imports between the folder's files work.

    Rollyard's own folders are imported as `rollyard.<family>.<name>`, and users' folders, which may be anywhere, as
    `rollyard_plugins.<family>.<name>`. No plug-in becomes a top-level module, because it could then shadow a package.
    """
    own = folder.resolve() == (INSTALLED / family / folder.name).resolve()
    package = f"{'rollyard' if own else PLUGINS}.{family}.{folder.name}"
    try:
        if not own and not _is_loaded(package, folder):
            _forget(package)
            _create_package(package, folder)
        with _siblings(folder):
            return importlib.import_module(f"{package}.{path.stem}")
    except OperatorError:
        raise
    except Exception as error:
        _forget(package)
        raise OperatorError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error


def _create_package(package: str, folder: Path) -> None:
    parent = package.rpartition(".")[0]
    for name in (PLUGINS, parent):
        if name not in sys.modules:
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = []
    init = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        package, init if init.is_file() else None, submodule_search_locations=[str(folder)]
    ) or importlib.util.spec_from_loader(package, loader=None, is_package=True)
    assert spec is not None
    spec.submodule_search_locations = [str(folder)]
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)


def _is_loaded(package: str, folder: Path) -> bool:
    """Return whether the package was loaded from `folder`, not from a folder with the same name in a different root."""
    paths = getattr(sys.modules.get(package), "__path__", ())
    return [Path(path).resolve() for path in paths] == [folder.resolve()]


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        del sys.modules[name]


@contextlib.contextmanager
def _siblings(folder: Path) -> Iterator[None]:
    """Let `import rules` in an entrypoint find the folder's rules.py or rules/, as in a script.

    Such modules are removed from `sys.modules` afterwards, because other plug-ins may have modules with the same names.
    """
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules.keys() - before if "." not in name]:
            file = getattr(sys.modules[name], "__file__", None)  # None for a folder without __init__.py
            paths = [file] if file else getattr(sys.modules[name], "__path__", ())
            if any(folder in Path(path).parents for path in paths):
                _forget(name)


FAMILIES = ("resources_servers", "responses_api_models", "agents")
FAMILY_ALIASES = {"responses_api_agents": "agents"}
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
    return [family, *(alias for alias, name in FAMILY_ALIASES.items() if name == family)]


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
