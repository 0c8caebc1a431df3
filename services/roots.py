"""Where files that users name are looked for: their own folder first, the installed stack last."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

INSTALLED = Path(__file__).resolve().parent.parent
"""The folder that holds the installed stack's packages, configs and data."""


def find_file(path: str | Path, roots: Iterable[Path]) -> Path | None:
    """`path` in the first root that has it; an absolute path is taken as it is."""
    return next((root / path for root in roots if (root / path).is_file()), None)
