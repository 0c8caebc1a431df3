"""Finds the Python in which a server of NeMo Gym runs.

It is the first of: the entry's `python` or `venv`, the config's `python` or `venv`, the environment in which NeMo Gym
is installed if its folders come from there, `.venv` in the server's folder, and `.venv` in the root of the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from rollyard.records.errors import OperatorError
from rollyard.services.config.nemo_gym.folders import is_installed


class Choice(Protocol):
    """The settings that choose an interpreter."""

    @property
    def python(self) -> str | None: ...
    @property
    def venv(self) -> str | None: ...


def chosen(choice: Choice, owner: str) -> Path | None:
    """Return the interpreter that the settings name; None if they name none. Raises OperatorError if it is unusable."""
    if choice.python is not None and choice.venv is not None:
        raise OperatorError(f"{owner} has both python and venv; set one of them")
    if choice.venv is not None:
        folder = Path(choice.venv).expanduser().absolute()
        return _checked(folder / "bin" / "python", f"{owner}.venv is {choice.venv!r}, which has no bin/python")
    if choice.python is not None:
        path = Path(choice.python).expanduser().absolute()
        return _checked(path, f"{owner}.python is {choice.python!r}, which is not a program")
    return None


def belonging_to(folder: Path, root: Path) -> Path | None:
    """Return the interpreter of the environment in which the server's folder is, or which is made for it."""
    candidates = [folder / ".venv", root / ".venv"]
    if is_installed(root):
        candidates.insert(0, root.parents[2])
    return next((found for venv in candidates if _is_program(found := venv / "bin" / "python")), None)


def _checked(path: Path, problem: str) -> Path:
    if not _is_program(path):
        raise OperatorError(f"{problem}; expected the Python in which NeMo Gym is installed")
    return path


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
