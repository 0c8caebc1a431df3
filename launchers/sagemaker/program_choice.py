"""Which program a job runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from rollyard.records.errors import OperatorError


def command_of(entrypoint: str | None, default: Sequence[str], project: Path, config: str | None) -> tuple[str, ...]:
    """Return the program and its arguments. `entrypoint`: a .py or .sh file of the project, or a program of the image.

    Raises OperatorError if the file does not exist, or if this version of Rollyard has no such command.
    """
    given = ("{config}",) if config is not None else ()
    if entrypoint is None:
        if not default:
            raise OperatorError("no program is set; pass --entrypoint")
        name = default[0]
        if name.startswith("ng_") and not entry_points(group="console_scripts", name=name):
            raise OperatorError(
                f"this version of Rollyard has no {name}; pass the program with --entrypoint, such as "
                "--entrypoint entrypoints/train.py"
            )
        script = next((word for word in default[1:2] if word.endswith((".py", ".sh"))), None)
        if script is not None and not _is_in(project, script):
            raise OperatorError(
                f"the settings' program {script} is not in the project {project}; add it, or pass another program with "
                "--entrypoint"
            )
        return tuple(default)
    if entrypoint.endswith((".py", ".sh")):
        if not _is_in(project, entrypoint):
            raise OperatorError(f"--entrypoint {entrypoint}: there is no such file in the project {project}")
        return ("python" if entrypoint.endswith(".py") else "bash", entrypoint, *given)
    return (entrypoint, *given)


def _is_in(project: Path, script: str) -> bool:
    """Return whether the job gets this path: it is relative, stays in the project, and a file is there."""
    inside = not os.path.isabs(script) and not os.path.normpath(script).startswith("..")  # noqa: PTH117
    return inside and (project / script).is_file()


def scripts_of(*commands: Sequence[str]) -> list[str]:
    """Return the project's files that the commands run."""
    return [command[1] for command in commands if command[1:2] and command[1].endswith((".py", ".sh"))]
