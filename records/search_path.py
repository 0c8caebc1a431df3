"""Finds files by name: first in the user's own folder, last in the installed package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rollyard.records.errors import OperatorError

INSTALLED = Path(__file__).resolve().parents[1]
"""The folder that contains Rollyard's packages, configs and data: the checkout, or `site-packages/rollyard`."""
IMPORT_ROOT = Path(__file__).parents[2]
"""The folder from which `rollyard` is imported: `src` in the checkout, or site-packages."""


def resolve(path: Path, roots: Sequence[Path]) -> Path:
    """Return the path of a file in the first root that contains it. Raises OperatorError if no root does."""
    found = find_file(path, roots)
    if found is None:
        raise OperatorError(f"{path} does not exist (looked in {', '.join(map(str, roots))})")
    return found


def find_file(path: str | Path, roots: Iterable[Path]) -> Path | None:
    """Return the path of a file in the first root that contains it; None if no root does.

    Raises OperatorError if a root is unreadable.
    """
    try:
        return next((root / path for root in roots if (root / path).is_file()), None)
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror}") from error
