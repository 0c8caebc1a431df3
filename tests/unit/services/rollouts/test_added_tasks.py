"""An output may be continued with more tasks than it was started with, if the others are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.manifest import ChangedParameters
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.rollouts.store import RolloutStore


def identity(*rows: int, **more: Any) -> Json:
    return {"input_sha256": "a", "rows": len(rows), "task_rows": list(rows), **more}


def collect(output: Path, known: Json, line: bytes) -> Json:
    """Add a line to an output, and return the identity in its manifest."""
    paths = RolloutPaths(output)
    store = RolloutStore(paths, known, {}, resume=True, overwrite=False)
    store.append((0, len(output.read_bytes().splitlines())), line)
    store.close()
    recorded: Json = orjson.loads(paths.manifest.read_bytes())["identity"]
    return recorded


def test_added_tasks_are_recorded(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert collect(output, identity(4, 7), b"{}") == identity(4, 7)
    assert collect(output, identity(4, 7, 1), b"{}") == identity(4, 7, 1)


@pytest.mark.parametrize("changed", [identity(4), identity(7, 4), identity(4, 8, 1), identity(4, 7, 1, temperature=1)])
def test_other_changes_are_refused(tmp_path: Path, changed: Json) -> None:
    output = tmp_path / "out.jsonl"
    collect(output, identity(4, 7), b"{}")
    with pytest.raises(ChangedParameters):
        collect(output, changed, b"{}")
