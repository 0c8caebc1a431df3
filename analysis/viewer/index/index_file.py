"""Saves the index as `X_index.npz` next to `X.jsonl`, so that a large file is only read once. It is safe to delete."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rollyard.analysis.metrics.loader.columns import (
    CATEGORIES,
    FLOATS,
    INTS,
    LOST_CATEGORIES,
    LOST_FLOATS,
    LOST_INTS,
    CategoryColumn,
    Columns,
    Unmeasured,
)
from rollyard.analysis.viewer.index.file_fingerprint import FileFingerprint
from rollyard.analysis.viewer.index.index_snapshot import Snapshot

FORMAT = 7
"""Format version, incremented when the contents or their meaning change. Files in older formats are ignored."""


def save(path: Path, snapshot: Snapshot, fingerprint: FileFingerprint) -> None:
    """Write the index atomically. Raises OSError if it cannot be written."""
    columns, lost = snapshot.columns, snapshot.columns.unmeasured
    arrays: dict[str, Any] = {name: getattr(columns, name) for name in (*INTS, *FLOATS)}
    arrays |= {name: getattr(columns, name).codes for name in CATEGORIES}
    arrays |= {f"stage{number}": seconds for number, seconds in enumerate(columns.stages.values())}
    arrays |= {f"lost_{name}": getattr(lost, name) for name in (*LOST_INTS, *LOST_FLOATS)}
    arrays |= {f"lost_{name}": getattr(lost, name).codes for name in LOST_CATEGORIES}
    header = {
        "format": FORMAT,
        "fingerprint": [fingerprint.end, fingerprint.size, fingerprint.mtime_ns, fingerprint.digest],
        "has_task_index": snapshot.has_task_index,
        "bad_lines": snapshot.bad_lines,
        "bad": snapshot.bad,
        "duplicates": snapshot.duplicates,
        "stages": list(columns.stages),
        "categories": {name: getattr(columns, name).names for name in CATEGORIES},
        "lost_categories": {name: getattr(lost, name).names for name in LOST_CATEGORIES},
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez(file, header=np.frombuffer(orjson.dumps(header), np.uint8), **arrays)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def saved(path: Path) -> tuple[Snapshot, FileFingerprint] | None:
    """Load the saved index; return None if it is missing or invalid."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _restored(arrays)
    # numpy may raise any exception for an invalid file. The index is then rebuilt.
    except Exception:
        return None


def _restored(arrays: Any) -> tuple[Snapshot, FileFingerprint] | None:
    header = orjson.loads(arrays["header"].tobytes())
    if header["format"] != FORMAT:
        return None
    arrays_by_name: dict[str, Any] = {name: _column(arrays[name], np.int64) for name in INTS}
    arrays_by_name |= {name: _column(arrays[name], np.float64) for name in FLOATS}
    arrays_by_name |= {name: _category_column(arrays[name], header["categories"][name]) for name in CATEGORIES}
    lost: dict[str, Any] = {name: _column(arrays[f"lost_{name}"], np.int64) for name in LOST_INTS}
    lost |= {name: _column(arrays[f"lost_{name}"], np.float64) for name in LOST_FLOATS}
    lost |= {
        name: _category_column(arrays[f"lost_{name}"], header["lost_categories"][name]) for name in LOST_CATEGORIES
    }
    stages = {str(name): _column(arrays[f"stage{number}"], np.float64) for number, name in enumerate(header["stages"])}
    _check(len(arrays_by_name["task"]), *(value for value in (*arrays_by_name.values(), *stages.values())))
    _check(len(lost["task"]), *lost.values())
    end, size, mtime_ns, digest = header["fingerprint"]
    bad = None if header["bad"] is None else (int(header["bad"][0]), str(header["bad"][1]))
    snapshot = Snapshot(
        Columns(**arrays_by_name, stages=stages, unmeasured=Unmeasured(**lost)),
        end=int(end),
        has_task_index=bool(header["has_task_index"]),
        bad_lines=int(header["bad_lines"]),
        bad=bad,
        duplicates=int(header["duplicates"]),
    )
    return snapshot, FileFingerprint(int(end), int(size), int(mtime_ns), str(digest))


def _column(array: Any, kind: Any) -> Any:
    if array.dtype != kind or array.ndim != 1:
        raise ValueError(f"expected a one-dimensional {kind.__name__} column")
    return array


def _category_column(codes: Any, names: Any) -> CategoryColumn:
    if _column(codes, np.int32).size and not -1 <= codes.min() <= codes.max() < len(names):
        raise ValueError("a category code has no name")
    return CategoryColumn(codes, tuple(map(str, names)))


def _check(count: int, *columns: Any) -> None:
    for column in columns:
        if len(column.codes if isinstance(column, CategoryColumn) else column) != count:
            raise ValueError("columns have different lengths")
