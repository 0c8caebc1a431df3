"""Modules under the paths that they had before 0.2, when most of the code was below `rollyard.services`.

Importing one gives the module that holds its names now, with a DeprecationWarning. This file goes with 0.3.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from functools import cache
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

_TABLE = Path(__file__).with_suffix(".txt")
"""A line for each module that took others in: its path, a colon, and theirs, all without `rollyard`."""


@cache
def _moved() -> dict[str, str]:
    lines = (line.split() for line in _TABLE.read_text().splitlines())
    return {former: f"rollyard.{now.rstrip(':')}" for now, *formers in lines for former in formers}


def find_spec(name: str) -> ModuleSpec | None:
    """Return a spec that gives the module which holds what this one held; None if there was none or if it is gone.

    A folder becomes an empty package, because Python would find its modules below its path and load them a second time.
    """
    former = name.removeprefix("rollyard.")
    if any(other.startswith(f"{former}.") for other in _moved()):
        return ModuleSpec(name, None, is_package=True)
    path = _moved().get(former)
    found = importlib.util.find_spec(path) if path else None
    return ModuleSpec(name, _Alias(found.name, found), origin=found.origin) if found else None


class _Alias(InspectLoader):
    """Gives an existing module instead of loading it again, so that its classes are the same under both names."""

    def __init__(self, path: str, spec: ModuleSpec) -> None:
        self._path = path
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(
            f"{spec.name} is now {self._path}; its former path goes with Rollyard 0.3", DeprecationWarning, stacklevel=2
        )
        return importlib.import_module(self._path)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has replaced it by that of the former path

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`, which runs the code of a module without importing it."""
        loader = self._spec.loader
        return loader.get_code(self._path) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        loader = self._spec.loader
        return loader.get_source(self._path) if isinstance(loader, InspectLoader) else None
