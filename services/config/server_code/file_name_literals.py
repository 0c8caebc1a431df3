"""Finds file names in string literals: `levels.json`, `data/prompts`, `{name}.txt`, `level%d.lv`, `*.csv`, `.csv`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

_MAX_LENGTH = 200
_PLACEHOLDER = re.compile(r"\{[^{}]*\}|%(?:\(\w+\))?[-+ #0]?[\d.]*[sdirfgx]")
_SUFFIX = re.compile(r"\.[A-Za-z]\w{0,7}")
_COMMON_FOLDERS = frozenset({"data", "configs"})
"""Folders that every server has. A string that consists only of such a name does not refer to the files in it."""


class FileNames:
    """File names and patterns that occur as strings in code."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._plain: set[str] = set()
        patterns = set()
        for text in texts:
            if not 0 < len(text) <= _MAX_LENGTH or "\n" in text:
                continue
            name = _PLACEHOLDER.sub("*", str(PurePosixPath(text)))
            if _SUFFIX.fullmatch(name):
                patterns.add(f"*{name}")
            elif "*" not in name:
                self._plain.add(name)
            elif "." in name and name.strip("*./ "):
                patterns.add(name)
        alternatives = "|".join(fnmatch.translate(name.replace("[", "[[]")) for name in sorted(patterns))
        self._patterns = re.compile(alternatives) if alternatives else None
        self._rows = {name.rpartition("/")[2] for name in (*self._plain, *patterns)} - {"*.jsonl"}

    def match(self, path: Path) -> bool:
        """Return True if one of the strings is the end of `path`, a folder in it, or a pattern that matches it."""
        parts = path.parts
        if path.suffix == ".jsonl" and "data" in parts[:-1] and path.name not in self._rows:
            return False  # rows belong to the dataset, whose digest is part of the collection's identity
        ends = ["/".join(parts[start:]) for start in range(len(parts))]
        runs = {"/".join(parts[start:end]) for end in range(1, len(parts)) for start in range(end)} - _COMMON_FOLDERS
        if not self._plain.isdisjoint(runs.union(ends)):
            return True
        return self._patterns is not None and any(self._patterns.match(end) for end in ends)
