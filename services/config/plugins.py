"""Loads a server's class from its folder."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from rollyard.records.errors import OperatorError
from rollyard.records.io.search_path import INSTALLED
from rollyard.services.server.app import Server

PLUGINS = "rollyard_plugins"
"""Parent package of imported plug-ins that are not part of Rollyard."""


def load_server(family: str, folder: Path, entrypoint: str) -> type[Server]:
    """Return the class that the file `entrypoint` assigns to `server`. Raises OperatorError if there is none."""
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
            if any(folder in Path(path).parents for path in _paths_of(sys.modules[name])):
                _forget(name)


def _paths_of(module: ModuleType) -> list[str]:
    file = getattr(module, "__file__", None)  # None for a folder without __init__.py
    return [file] if file else list(getattr(module, "__path__", ()))
