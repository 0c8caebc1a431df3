"""Dataset files and mixtures for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.data_files import DataFiles
from rollyard.records.types import Json
from rollyard.services.datasets.dataset import MixtureSettings
from rollyard.services.datasets.mixture import Mixture
from rollyard.services.server.settings import parse_settings


def row(text: str, **more: Any) -> Json:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **more}


def rows(prefix: str, count: int, **more: Any) -> list[Json]:
    """Rows with the ids `prefix0`, `prefix1`, ..."""
    return [row(f"{prefix}{number}", prompt_id=f"{prefix}{number}", **more) for number in range(count)]


def write_rows(path: Path, lines: Sequence[Json | bytes]) -> Path:
    path.write_bytes(b"".join((line if isinstance(line, bytes) else orjson.dumps(line)) + b"\n" for line in lines))
    return path


def mixture(
    root: Path, *datasets: dict[str, Any], agent: str | None = "agent", limit: int | None = None, **more: Any
) -> Mixture:
    settings = parse_settings(MixtureSettings, {"datasets": list(datasets), **more}, "data")
    return Mixture(settings, DataFiles([root]), agent=agent, limit=limit)
