"""The rollout files that arguments name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.records.errors import OperatorError


def rollout_files(arguments: Sequence[str | Path]) -> list[Path]:
    """Return the rollout file that each argument names: the file itself, or the one in an evaluation's folder.

    Raises OperatorError if a folder contains no rollouts.
    """
    found = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            file = EvalFolder(path).rollouts.output
            if not file.is_file():
                raise OperatorError(
                    f"the folder {str(path)!r} has no {file.name}; expected an evaluation's folder or a rollout file"
                )
            path = file
        found.append(path)
    return found


def folder_names(arguments: Sequence[str | Path]) -> list[str]:
    """Return the names of the folders, if all arguments are folders with different names; otherwise an empty list."""
    names = [Path(argument).resolve().name for argument in arguments if Path(argument).is_dir()]
    return names if len(set(names)) == len(arguments) else []
