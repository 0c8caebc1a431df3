"""Saves the index as `X_index.npz` next to `X.jsonl`, so that a large file is read once. Safe to delete."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rollyard.services.metrics.loader.columns import (
    FLOATS,
    INTS,
    LOST_FLOATS,
    LOST_INTS,
    LOST_WORDS,
    WORDS,
    CategoryColumn,
    Columns,
    Unmeasured,
)
from rollyard.services.viewer.index.file_fingerprint import FileFingerprint
from rollyard.services.viewer.index.index_snapshot import Snapshot

FORMAT = 5
"""Incremented whenever the content or its meaning changes; files in older formats are ignored."""


def save(path: Path, snapshot: Snapshot, mark: FileFingerprint) -> None:
    """Write the index atomically. Raises OSError."""
    columns, lost = snapshot.columns, snapshot.columns.unmeasured
    arrays: dict[str, Any] = {name: getattr(columns, name) for name in (*INTS, *FLOATS)}
    arrays |= {name: getattr(columns, name).codes for name in WORDS}
    arrays |= {f"stage{number}": seconds for number, seconds in enumerate(columns.stages.values())}
    arrays |= {f"lost_{name}": getattr(lost, name) for name in (*LOST_INTS, *LOST_FLOATS)}
    arrays |= {f"lost_{name}": getattr(lost, name).codes for name in LOST_WORDS}
    said = {
        "format": FORMAT,
        "mark": [mark.end, mark.size, mark.mtime_ns, mark.digest],
        "says_task": snapshot.says_task,
        "bad_lines": snapshot.bad_lines,
        "bad": snapshot.bad,
        "twice": snapshot.twice,
        "stages": list(columns.stages),
        "words": {name: getattr(columns, name).names for name in WORDS},
        "lost_words": {name: getattr(lost, name).names for name in LOST_WORDS},
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez(file, said=np.frombuffer(orjson.dumps(said), np.uint8), **arrays)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def saved(path: Path) -> tuple[Snapshot, FileFingerprint] | None:
    """Load the saved index; None if there is no usable one."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _restored(arrays)
    # A damaged or foreign file may raise any exception in numpy; rebuilding the index fixes all of them.
    except Exception:
        return None


def _restored(arrays: Any) -> tuple[Snapshot, FileFingerprint] | None:
    said = orjson.loads(arrays["said"].tobytes())
    if said["format"] != FORMAT:
        return None
    arrays_by_name: dict[str, Any] = {name: _column(arrays[name], np.int64) for name in INTS}
    arrays_by_name |= {name: _column(arrays[name], np.float64) for name in FLOATS}
    arrays_by_name |= {name: _words(arrays[name], said["words"][name]) for name in WORDS}
    lost: dict[str, Any] = {name: _column(arrays[f"lost_{name}"], np.int64) for name in LOST_INTS}
    lost |= {name: _column(arrays[f"lost_{name}"], np.float64) for name in LOST_FLOATS}
    lost |= {name: _words(arrays[f"lost_{name}"], said["lost_words"][name]) for name in LOST_WORDS}
    stages = {str(name): _column(arrays[f"stage{number}"], np.float64) for number, name in enumerate(said["stages"])}
    _check(len(arrays_by_name["task"]), *(value for value in (*arrays_by_name.values(), *stages.values())))
    _check(len(lost["task"]), *lost.values())
    end, size, mtime_ns, digest = said["mark"]
    bad = None if said["bad"] is None else (int(said["bad"][0]), str(said["bad"][1]))
    snapshot = Snapshot(
        Columns(**arrays_by_name, stages=stages, unmeasured=Unmeasured(**lost)),
        end=int(end),
        says_task=bool(said["says_task"]),
        bad_lines=int(said["bad_lines"]),
        bad=bad,
        twice=int(said["twice"]),
    )
    return snapshot, FileFingerprint(int(end), int(size), int(mtime_ns), str(digest))


def _column(array: Any, kind: Any) -> Any:
    if array.dtype != kind or array.ndim != 1:
        raise ValueError(f"a column of {array.dtype} with {array.ndim} dimensions")
    return array


def _words(codes: Any, names: Any) -> CategoryColumn:
    if _column(codes, np.int32).size and not -1 <= codes.min() <= codes.max() < len(names):
        raise ValueError("a code without a name")
    return CategoryColumn(codes, tuple(map(str, names)))


def _check(count: int, *columns: Any) -> None:
    for column in columns:
        if len(column.codes if isinstance(column, CategoryColumn) else column) != count:
            raise ValueError("columns of different lengths")
