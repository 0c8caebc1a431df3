"""Extras: packages that only some features need. They are looked for when wanted, and named with what installs them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from services.errors import OperatorError


def require(package: str, extra: str, wanted_for: str) -> None:
    """Raises OperatorError with the command that installs `package` when it is not there. Imports nothing."""
    if importlib.util.find_spec(package) is None:
        raise OperatorError(
            f"{wanted_for} needs the package {package}, which is not installed here. It is in the extra {extra!r}: "
            f"{sys.executable} -m pip install 'rollyard[{extra}]'"
        )


def load(module: str, extra: str, wanted_for: str) -> ModuleType:
    """A module of an extra, imported. Raises OperatorError as `require` does."""
    require(module.partition(".")[0], extra, wanted_for)
    return importlib.import_module(module)
