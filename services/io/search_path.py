"""Where files that users name are looked for: their own folder first, the installed stack last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rollyard.services.errors import OperatorError

INSTALLED = Path(__file__).resolve().parents[2]
"""The folder that holds the stack's packages, configs and data: the checkout, or `site-packages/rollyard`."""
IMPORT_ROOT = Path(__file__).parents[3]
"""The folder from which `rollyard` is imported: `src` of the checkout, or site-packages."""


def resolve(path: Path, roots: Sequence[Path]) -> Path:
    """`path` in the first root that has it. Raises OperatorError when none has."""
    found = find_file(path, roots)
    if found is None:
        raise OperatorError(f"{path} is not there (looked in {', '.join(map(str, roots))})")
    return found


def find_file(path: str | Path, roots: Iterable[Path]) -> Path | None:
    """`path` in the first root that has it; an absolute path is taken as it is. Raises OperatorError where nobody may
    look.
    """
    try:
        return next((root / path for root in roots if (root / path).is_file()), None)
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror}") from error
