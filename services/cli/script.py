"""Scripts with flags (`prepare.py`, ...) end as the commands do: one line for a mistake, and exit status 2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from services.cli.options import EXIT_DONE, exit_status
from services.errors import OperatorError
from services.store import StorePaths


class ScriptParser(argparse.ArgumentParser):
    """Refuses in one line. Raises OperatorError instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        """See argparse; a mistake in the options."""
        raise OperatorError(message)


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run a script's `main` and end with a command's exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    sys.exit(exit_status(Path(sys.argv[0]).name, lambda: main() or EXIT_DONE))


def positive(text: str) -> int:
    """An option's value as a whole number of 1 or more."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    """An option's value as a whole number of 0 or more."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        if (value := int(text)) >= least:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")


def check_output(path: Path, *read: Path | None) -> None:
    """Make the folder of an output. Raises OperatorError where writing would destroy what is read, or rollouts."""
    if path.is_dir():
        raise OperatorError(f"{path} is a folder; expected a file to write")
    if path.exists() and path.suffix == ".jsonl" and StorePaths(path).manifest.exists():
        raise OperatorError(
            f"{path} holds the rollouts of a collection and would be written over; choose another output"
        )
    if path.resolve() in {one.resolve() for one in read if one is not None}:
        raise OperatorError(f"{path} is read and would be written over; choose another output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"cannot make the folder of {path}: {error.strerror}") from error
