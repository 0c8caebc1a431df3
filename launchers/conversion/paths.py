"""Where a converted checkpoint is stored: `$LOG/nemo-rl/hf_eval_checkpoints/<identifier>_<hash>`, or a given path."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_GENERIC = ("weights", "policy", "actor")
"""Folder names that are the same in every checkpoint."""
_MAX_IDENTIFIER = 64


def resolve(path: str | Path, environ: Mapping[str, str]) -> Path:
    """Return the absolute path without symbolic links, `~`, `..` or a trailing slash. It need not exist."""
    text = str(path)
    home = environ.get("HOME", "")
    if home and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    return Path(os.path.realpath(Path(text).expanduser()))


def cache_root(environ: Mapping[str, str]) -> Path:
    """Return the folder of all conversions."""
    return resolve(environ.get("LOG") or "/tmp", environ) / "nemo-rl" / "hf_eval_checkpoints"


def identifier(checkpoint: Path) -> str:
    """Return the readable part of the folder's name: `step_170` for `results/grpo/step_170/policy/weights`."""
    named = [part for part in checkpoint.parts if part != checkpoint.anchor and part not in _GENERIC]
    return re.sub(r"[^A-Za-z0-9_-]+", "_", named[-1]).strip("_-")[:_MAX_IDENTIFIER] if named else ""


def cached_path(root: Path, checkpoint: Path, key: str) -> Path:
    """Return the folder of the conversion that `key` identifies."""
    return root / "_".join(filter(None, (identifier(checkpoint), key[:16])))
