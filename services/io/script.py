"""Runs scripts such as `prepare.py` with the same exit statuses and error messages as the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rollyard.services.errors import OperatorError
from rollyard.services.io.exit_status import EXIT_DONE, exit_status


class ScriptParser(argparse.ArgumentParser):
    """Argument parser that raises OperatorError instead of exiting the program."""

    def error(self, message: str) -> NoReturn:
        """Called by argparse for invalid options."""
        raise OperatorError(message)


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run a script's `main` and exit with the same statuses as a command.

    They are 0 (done), 1 (failed), 2 (wrong usage) and 130 (interrupted).
    """
    sys.exit(exit_status(Path(sys.argv[0]).name, lambda: main() or EXIT_DONE))


def positive(text: str) -> int:
    """Parse the value of an option, which must be an integer of 1 or more."""
    return _integer(text, 1)


def not_negative(text: str) -> int:
    """Parse the value of an option, which must be an integer of 0 or more."""
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    try:
        if (value := int(text)) >= least:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text} is not an integer of {least} or more")
