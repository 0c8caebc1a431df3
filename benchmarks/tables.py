"""Prints tables that fit a terminal of 100 columns, and writes them to pages."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from rollyard.records.errors import OperatorError

Rows = Sequence[Sequence[object]]


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> None:
    """Print a table; the first column is left-aligned, the others right-aligned."""
    cells = [[_shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    print(f"\n{title}")
    for line in (columns, ["-" * width for width in widths], *cells):
        first, *rest = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *rest]).rstrip())
    if note:
        print(note)
    print(end="", flush=True)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table in Markdown; the first column is left-aligned, the others right-aligned."""
    lines = [f"| {' | '.join(map(_shown, line))} |" for line in (columns, *rows)]
    return [lines[0], f"|---{'|---:' * (len(columns) - 1)}|", *lines[1:]]


def host() -> str:
    """Return what was measured where: date, cores, Python and commit."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cpu = names[0] if names else platform.machine()
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{today}, {os.cpu_count()} cores of {cpu}, Python {platform.python_version()}, commit {commit or 'unknown'}"


def write_section(path: Path, name: str, load: float, tables: Sequence[tuple[str, Sequence[str], Rows]]) -> None:
    """Replace the tables of a program, each with its title, columns and rows; `load`: the host's load before it."""
    parts = [f"Measured on {host()}; load average before: {load:.1f}.", ""]
    for title, columns, rows in tables:
        parts += [f"**{title}**", "", *markdown(columns, rows), ""]
    write_between(path, f"<!-- {name}: begin -->", f"<!-- {name}: end -->", "\n".join(parts))
    print(f"wrote the tables to {path}")


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a page. Raises OperatorError if a marker is missing."""
    page = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise OperatorError(f"{path} has no {begin} followed by {end}; expected a page with both markers")
    path.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
    return str(cell)
