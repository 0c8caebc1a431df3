"""The most frequent failure of a collection, in one line."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from rollyard.records.io.json_values import is_number
from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.records.io.terminal import plain_line

_MAX_DETAIL = 300
_VARYING = re.compile(r"[0-9a-f]{8,}|\d+", re.IGNORECASE)
"""Ids and numbers, in which failures of one cause differ."""


def most_frequent_failure(failures: Path, since: float = 0.0) -> str:
    """Return the most frequent failure in `X_failures.jsonl` since a time, in Unix seconds; empty if there is none."""
    counts = Counter[str]()
    examples: dict[str, str] = {}
    try:
        for row in (line.value for line in iter_jsonl(failures, skip)):
            happened = row.get("time", 0.0)
            if not is_number(happened) or happened < since:
                continue
            shown = f"{row.get('failure_kind')} at {row.get('server') or 'an unknown server'}: {row.get('detail')}"
            group = _VARYING.sub("#", shown)
            counts[group] += 1
            examples.setdefault(group, shown)
    except OSError:
        return ""
    if not counts:
        return ""
    group, count = counts.most_common(1)[0]
    shown = plain_line(examples[group])
    shown = shown if len(shown) <= _MAX_DETAIL else f"{shown[:_MAX_DETAIL]} ..."
    return f"{count:,} of {counts.total():,} failed attempts: {shown}"
