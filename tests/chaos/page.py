"""docs/robustness.md: the table, and how it was made. Counts, no times: it is the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.chaos.result import Result

SECTIONS = {2: "Files", 3: "Faults and overload", 4: "HTTP"}


def write(path: Path, results: Sequence[Result]) -> None:
    """Write the page."""
    path.write_text(text(results))


def text(results: Sequence[Result]) -> str:
    return ""
