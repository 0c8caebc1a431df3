"""Recognizes server folders of NeMo Gym, and finds the folder in which its other files are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rollyard.records.io.search_path import INSTALLED
from rollyard.services.config.server_folders import ALIASES, FAMILIES, folder_names

_NEMO_GYM = re.compile(r"^\s*(?:from|import)\s+nemo_gym\b|\.run_webserver\(", re.MULTILINE)


def is_nemo_gym_server(folder: Path, entrypoint: str) -> bool:
    """Return whether the folder's program is one of NeMo Gym: it uses that package, and defines no `server`."""
    path = folder / entrypoint
    if folder.parent.parent == INSTALLED or not path.is_file():
        return False
    text = path.read_text("utf-8", "replace")
    return bool(_NEMO_GYM.search(text)) and not _assigns_server(text)


def _assigns_server(text: str) -> bool:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return any(
        isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "server" for to in node.targets)
        for node in tree.body
    )


def root_of(file: Path) -> Path | None:
    """Return the nearest folder above `file` that contains a folder of a server family; None if there is none."""
    for parent in file.absolute().parents[1:]:
        if any((parent / name).is_dir() for name in (*FAMILIES, *ALIASES)):
            return parent
    return None


def is_installed(root: Path) -> bool:
    """Return whether `root` is the folder of installed packages, and not that of a checkout."""
    return root.name in ("site-packages", "dist-packages")


def installed_version(root: Path) -> str | None:
    """Return the version of NeMo Gym that is installed in `root`; None for a checkout."""
    found = next(root.glob("nemo_gym-*.dist-info"), None)
    return None if found is None else found.name.removeprefix("nemo_gym-").removesuffix(".dist-info")


def with_roots_of(files: Iterable[Path], roots: Sequence[Path]) -> list[Path]:
    """Return the search path, extended by the folders from which configs come that are outside of it.

    These are searched last, so that they hide no server of the other folders.
    """
    extended = list(roots)
    for file in files:
        found = root_of(file)
        if found is not None and not any(found.resolve() == root.resolve() for root in extended):
            extended.append(found)
    return extended


def root_of_environment(interpreter: Path) -> Path | None:
    """Return the folder of NeMo Gym's files in the interpreter's environment; None if it is not installed there."""
    for packages in sorted((interpreter.parent.parent / "lib").glob("python*/site-packages")):
        if (packages / "nemo_gym").is_dir():
            return packages
    return None


def nemo_gym_folder(family: str, implementation: str, entrypoint: str, roots: Sequence[Path]) -> Path | None:
    """Return the first folder with NeMo Gym's server of that name."""
    for root in roots:
        for name in folder_names(family):
            folder = root / name / implementation
            if is_nemo_gym_server(folder, entrypoint):
                return folder.resolve()
    return None
