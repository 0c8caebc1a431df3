"""Prints tables that fit a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Sequence


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


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
    return str(cell)
