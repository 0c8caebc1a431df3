"""Finds downloaded models in the cache of huggingface_hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def snapshot(model: str, revision: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of a revision (branch, tag or commit); None if it was not downloaded."""
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    cache = Path(environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    model_folder = cache / f"models--{model.replace('/', '--')}"
    try:
        commit = (model_folder / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    folder = model_folder / "snapshots" / commit
    return folder if folder.is_dir() else None
