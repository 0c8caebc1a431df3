"""Docker: runs the docker program with argument lists."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from rollyard.records.errors import OperatorError, RunError


class Docker:
    """The docker program on this host."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line

    def require(self, needed_for: str) -> None:
        """Raise OperatorError if there is no docker program."""
        if shutil.which("docker") is None:
            raise OperatorError(
                f"{needed_for} needs docker, which is not installed on this host (or not in PATH). `--local` "
                "without --gpus runs the program directly"
            )

    def run(self, command: Sequence[str]) -> None:
        """Run a command whose output goes to the terminal. Raises RunError if it fails."""
        self._print(shown(command))
        try:
            status = subprocess.run(command, check=False).returncode
        except OSError as error:
            raise RunError(f"{command[0]} cannot be run: {error.strerror}") from error
        if status:
            raise RunError(f"`{' '.join(command[:2])}` failed with exit status {status}; its output is above")

    def sign_in(self, registry: str, user: str, password: str) -> None:
        """Sign in to a registry; the password goes to standard input."""
        command = ["docker", "login", "--username", user, "--password-stdin", registry]
        self._print(shown(command))
        try:
            done = subprocess.run(command, input=password, text=True, capture_output=True, check=False)
        except OSError as error:
            raise RunError(f"docker cannot be run: {error.strerror}") from error
        if done.returncode:
            raise RunError(f"docker cannot sign in to {registry}: {done.stderr.strip().partition(chr(10))[0]}")


def run_command(image: str, project: Path, gpus: str, environment: dict[str, str], command: Sequence[str]) -> list[str]:
    """Return the command that runs a job's program locally in its image, on the given GPUs.

    The project is mounted at /opt/ml/code and at its own path, so that absolute paths in configs are valid.
    """
    variables = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    # Docker parses --gpus as CSV: the quotes keep `0,1` one value.
    return [
        *("docker", "run", "--rm", "--init", "--ipc=host", "--gpus", f'"device={gpus}"'),
        *(
            "-v",
            f"{project}:/opt/ml/code",
            "-v",
            f"{project}:{project}",
            "-v",
            f"{project / 'training_output'}:/opt/ml/model",
        ),
        *("-w", "/opt/ml/code", *variables, image, *command),
    ]


def shown(command: Sequence[str]) -> str:
    """Format a command for display, quoted as a shell needs it."""
    return "$ " + shlex.join(command)
