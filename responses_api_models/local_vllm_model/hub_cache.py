"""Hub: where a model with a name on the Hugging Face hub is on this disk, as huggingface_hub lays its cache out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def snapshot(model: str, revision: str, environ: Mapping[str, str]) -> Path | None:
    """The folder of that revision (a branch, a tag or a commit); None where it was not downloaded."""
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    cache = Path(environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    kept = cache / f"models--{model.replace('/', '--')}"
    try:
        commit = (kept / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    folder = kept / "snapshots" / commit
    return folder if folder.is_dir() else None
