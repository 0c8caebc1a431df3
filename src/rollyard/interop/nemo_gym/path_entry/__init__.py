"""A folder for PYTHONPATH. It contains the package `nemo_gym`, with the modules that trainers import."""

from __future__ import annotations

from pathlib import Path


def path_entry() -> str:
    """Return the folder to put first in PYTHONPATH, so that `import nemo_gym` finds Rollyard's package."""
    return str(Path(__file__).resolve().parent)
