"""Data set files for the tests beside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.services.types import Json


def row(text: str, **more: Any) -> Json:
    """A playable row."""
    return {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **more}


def rows(prefix: str, count: int, **more: Any) -> list[Json]:
    """Rows `prefix0`, `prefix1`, ... with these as their ids."""
    return [row(f"{prefix}{number}", prompt_id=f"{prefix}{number}", **more) for number in range(count)]


def written(path: Path, lines: Sequence[Json | bytes]) -> Path:
    """A data set file."""
    path.write_bytes(b"".join((one if isinstance(one, bytes) else orjson.dumps(one)) + b"\n" for one in lines))
    return path
