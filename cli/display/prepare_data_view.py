"""Formats the report that `ng_prepare_data` prints about a dataset's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollyard.records.io.terminal import plain_line
from rollyard.services.datasets.validate import FileReport, Repetition

MAX_EXAMPLES = 2
"""Maximum number of examples shown for each kind of overlap."""
_KINDS = {"row": "same row", "id": "same id", "question": "same question", "words": "words in common"}
MAX_LISTED = 5
"""Maximum number of problems and of duplicates that are listed."""


def show(found: Sequence[FileReport], *, against: bool) -> None:
    """Print the reports. `against`: whether the files were checked for overlap with others."""
    for one in found:
        print(one.path)
        counts = f"{one.rows:,} valid, {one.problems:,} invalid" if one.rows or one.problems else "none"
        print(f"  rows        {counts}")
        for problem in one.first_problems[:MAX_LISTED]:
            print(f"              line {problem.line}: {plain_line(problem.problem)}")
        if one.problems > MAX_LISTED:
            print(f"              ... and {one.problems - MAX_LISTED:,} more (--json shows up to 20)")
        agents = ", ".join(f"{name or '(no agent_ref)'} {count:,}" for name, count in one.agents.items())
        print(f"  agents      {plain_line(agents) or 'none'}")
        if (prompt := one.prompt_characters) is not None:
            print(f"  prompt      {prompt.min:,.0f} to {prompt.max:,.0f} characters, median {prompt.median:,.0f}")
        keys = ", ".join(_format_share(key, count, one.rows) for key, count in one.keys.items())
        print(f"  keys        {plain_line(keys) or 'none'}")
        if again := one.first_repeated_ids:
            first = plain_line(f"line {again[0].line} {again[0].problem}")
            print(f"  ids         {one.repeated_ids:,} rows repeat an earlier row's id ({first})")
        print(f"  duplicates  {_format_repeats(one.duplicates, one.first_duplicates)}")
        if against:
            counts = ", ".join(f"{_KINDS[kind]} {count:,}" for kind, count in one.overlap.items())
            print(f"  overlap     {counts if any(one.overlap.values()) else 'none'}")
            for kind in one.overlap:
                for match in [match for match in one.first_overlap if match.kind == kind][:MAX_EXAMPLES]:
                    evidence = f" ({plain_line(match.evidence)[:80]})" if match.evidence else ""
                    where = f"line {match.line} is {Path(match.path).name}:{match.first_line}"
                    print(f"              {_KINDS[kind]}: {where}{evidence}")


def _format_share(key: str, count: int, rows: int) -> str:
    return key if count == rows else f"{key} ({count:,} of {rows:,})"


def _format_repeats(count: int, first: Sequence[Repetition]) -> str:
    if not count:
        return "none"
    shown = ", ".join(f"line {one.line} is {Path(one.path).name}:{one.first_line}" for one in first[:MAX_LISTED])
    return f"{count:,} ({shown}{', ...' if count > MAX_LISTED else ''})"
