"""The most frequent failure of a collection, in one line."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import orjson

from rollyard.services.io.terminal import plain_line

_MAX_BYTES = 4 << 20
"""The end of a longer file is read: the failures of the last attempts."""
_MAX_DETAIL = 300
_VARYING = re.compile(r"[0-9a-f]{8,}|\d+", re.IGNORECASE)


def most_frequent_failure(failures: Path, since: float = 0.0) -> str:
    """Return the most frequent failure in `X_failures.jsonl` since a time, in Unix seconds; empty if there is none."""
    counts = Counter[str]()
    examples: dict[str, str] = {}
    for line in _lines(failures):
        try:
            row = orjson.loads(line)
            if not isinstance(row, dict) or row.get("time", 0.0) < since:
                continue
        except (orjson.JSONDecodeError, TypeError):
            continue
        shown = f"{row.get('failure_kind')} at {row.get('server') or 'an unknown server'}: {row.get('detail')}"
        group = _VARYING.sub("#", shown)
        counts[group] += 1
        examples.setdefault(group, shown)
    if not counts:
        return ""
    group, count = counts.most_common(1)[0]
    shown = plain_line(examples[group])
    shown = shown if len(shown) <= _MAX_DETAIL else f"{shown[:_MAX_DETAIL]} ..."
    return f"{count:,} of {counts.total():,} failed attempts: {shown}"


def _lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MAX_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    return lines[1:] if size > _MAX_BYTES else lines
