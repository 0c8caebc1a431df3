"""Which program a job runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from rollyard.services.errors import OperatorError


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
        if script is not None and not (project / script).is_file():
            raise OperatorError(
                f"the settings' program {script} is not in the project {project}; add it, or pass another program with "
                "--entrypoint"
            )
        return tuple(default)
    if entrypoint.endswith((".py", ".sh")):
        if not (project / entrypoint).is_file():
            raise OperatorError(f"--entrypoint {entrypoint}: there is no such file in the project {project}")
        return ("python" if entrypoint.endswith(".py") else "bash", entrypoint, *given)
    return (entrypoint, *given)
