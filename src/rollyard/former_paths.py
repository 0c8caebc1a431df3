"""Modules under the paths that they had before 0.2, when most of the code was below `rollyard.services`.

Importing one gives the module itself, with a DeprecationWarning that names its path. This file goes with 0.3.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

_ROLLOUTS = ("replay", "rewards", "rollout_file", "rollout_files", "rollout_keys", "status_file", "tokens", "manifest")
_DATASETS = ("columns", "compression", "data_files", "parquet", "rows", "spread", "temporary_copy")
_MOVED = {
    **{
        name: f"rollyard.records.{name}" for name in ("errors", "expressions", "io", "notes", "types", "verdict_fields")
    },
    **{name: f"rollyard.records.{name}" for name in ("rollout_types", "run_types", "token_types")},
    **{f"rollouts.{name}": f"rollyard.records.rollouts.{name}" for name in _ROLLOUTS},
    **{f"datasets.{name}": f"rollyard.records.datasets.{name}" for name in _DATASETS},
    **{name: f"rollyard.analysis.{name}" for name in ("charts", "findings", "metrics", "report", "tracking", "viewer")},
    "evaluation.gate": "rollyard.analysis.gate",
    "evaluation": "rollyard.launchers.evaluation",
    **{f"launchers.{name}": f"rollyard.launchers.{name}" for name in ("conversion", "sagemaker", "slurm")},
    "launchers": "rollyard.launchers",
    "training": "rollyard.training",
    "cli": "rollyard.cli",
}
"""The former path of a module or package below `rollyard.services`, and its path."""


def find_spec(name: str) -> ModuleSpec | None:
    """Return a spec that gives the module which had this name; None if there was none or if it is gone.

    A package becomes an empty one, because Python would find its modules below its path and load them a second time.
    """
    parts = name.removeprefix("rollyard.services.").split(".")
    for length in range(len(parts), 0, -1):
        if home := _MOVED.get(".".join(parts[:length])):
            path = ".".join((home, *parts[length:]))
            found = importlib.util.find_spec(path)
            if found is None or found.submodule_search_locations is None:
                return found and ModuleSpec(name, _Alias(path, found), origin=found.origin)
            return ModuleSpec(name, None, is_package=True)
    return None


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
