"""Builds command lines of Rollyard's own commands, for processes that are started by other parts of Rollyard."""

from __future__ import annotations

import sys


def own_command(name: str, *arguments: str) -> list[str]:
    """Return the command line of a command such as `ng_run`, in this Python environment, wherever its scripts are."""
    return [sys.executable, "-P", "-m", "rollyard.cli.entry", name, *arguments]
