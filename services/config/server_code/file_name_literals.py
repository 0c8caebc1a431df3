"""Finds file names in strings of code: `levels.json`, `data/prompts`, `{name}.txt`, `level%d.lv`, `*.csv`, `.csv`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

_LONGEST = 200
_HOLE = re.compile(r"\{[^{}]*\}|%(?:\(\w+\))?[-+ #0]?[\d.]*[sdirfgx]")
_SUFFIX = re.compile(r"\.[A-Za-z]\w{0,7}")
_EVERYWHERE = frozenset({"data", "configs"})
"""Folders that every server has, so their name alone does not identify a file in them."""


class FileNames:
    """The strings of some code, as names of files."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._plain: set[str] = set()
        patterns = set()
        for text in texts:
            if not 0 < len(text) <= _LONGEST or "\n" in text:
                continue
            name = _HOLE.sub("*", str(PurePosixPath(text)))
            if _SUFFIX.fullmatch(name):
                patterns.add(f"*{name}")
            elif "*" not in name:
                self._plain.add(name)
            elif "." in name and name.strip("*./ "):
                patterns.add(name)
        whole = "|".join(fnmatch.translate(name.replace("[", "[[]")) for name in sorted(patterns))
        self._patterns = re.compile(whole) if whole else None
        self._rows = {name.rpartition("/")[2] for name in (*self._plain, *patterns)} - {"*.jsonl"}

    def mean(self, path: Path) -> bool:
        """Return whether a string is the end of the path, a folder on it, or a pattern that it matches."""
        parts = path.parts
        if path.suffix == ".jsonl" and "data" in parts[:-1] and path.name not in self._rows:
            return False  # rows belong to the dataset, whose digest is part of the collection's identity
        ends = ["/".join(parts[start:]) for start in range(len(parts))]
        runs = {"/".join(parts[start:end]) for end in range(1, len(parts)) for start in range(end)} - _EVERYWHERE
        if not self._plain.isdisjoint(runs.union(ends)):
            return True
        return self._patterns is not None and any(self._patterns.match(end) for end in ends)
