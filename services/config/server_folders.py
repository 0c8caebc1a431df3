"""Finds a server's folder. Users' own folders need not be registered.

It imports no server, so that commands which start none begin at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollyard.services.errors import OperatorError, did_you_mean

FAMILIES = ("resources_servers", "responses_api_models", "agents")
ALIASES = {"responses_api_agents": "agents"}
"""NeMo Gym's name for a family -> Rollyard's name for it."""


def folder_names(family: str) -> list[str]:
    """Return the names that a family's folder may have."""
    return [family, *(alias for alias, name in ALIASES.items() if name == family)]


def find_folders(family: str, implementation: str, roots: Sequence[Path]) -> list[Path]:
    """Return `family/implementation` in each root that contains it, in the order in which they are preferred."""
    folders = [root / name / implementation for root in roots for name in folder_names(family)]
    folders = [folder for folder in folders if folder.is_dir()]
    # A folder without Python files, such as one with data or results next to a config, is not a server.
    preferred = [*(folder for folder in folders if any(folder.glob("*.py"))), *folders]
    return list(dict.fromkeys(folder.resolve() for folder in preferred))


def find_folder(family: str, implementation: str, roots: Sequence[Path]) -> Path:
    """Return `family/implementation` in the first root that contains it. Raises OperatorError if none does."""
    if folders := find_folders(family, implementation, roots):
        return folders[0]
    candidates = [root / name for root in roots for name in folder_names(family)]
    known = sorted(
        {child.name for folder in candidates if folder.is_dir() for child in folder.iterdir() if child.is_dir()}
    )
    hint = did_you_mean(implementation, known)
    searched = ", ".join(str(root) for root in roots)
    raise OperatorError(f"no folder {family}/{implementation}{hint} (looked in {searched})")
