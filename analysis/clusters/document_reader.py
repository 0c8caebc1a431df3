"""Reads the documents of rollouts at known places of a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rollyard.analysis.clusters.documents import terms_of
from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.records.io.jsonl import lenient
from rollyard.records.io.lines import line_at


def documents_at(path: Path, offsets: Ints) -> list[Counter[str]]:
    """Return the terms of the rows at these byte offsets. A row that is no longer a JSON object has none, which can
    happen if the file was changed. Raises OSError.
    """
    return [_document(line_at(path, offset)) for offset in offsets.tolist()]


def _document(line: bytes) -> Counter[str]:
    try:
        row = lenient(line)
    except ValueError:
        return Counter()
    return terms_of(row) if isinstance(row, dict) else Counter()
