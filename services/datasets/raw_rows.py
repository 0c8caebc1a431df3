"""Rows as they were published, before a `prepare.py` makes tasks of them: any objects, of one file or of several."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.services.datasets.data_files import lines_of
from rollyard.services.datasets.rows import parsed
from rollyard.services.datasets.split_names import stem_of
from rollyard.services.errors import OperatorError
from rollyard.services.io.strict_json import load_exact
from rollyard.services.types import Json


class RawRows:
    """The rows of files, one file after the other."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.file: Path | None = None
        """Of the row that was read last."""

    def __iter__(self) -> Iterator[Json]:
        """Raises OperatorError for what cannot be read, and for what is not an object."""
        for file in self._files:
            for number, row in enumerate(_items(file), 1):
                self.file = file
                if not isinstance(row, dict):
                    raise OperatorError(f"{file}: row {number} is a JSON {type(row).__name__}; expected an object")
                yield row


def _items(file: Path) -> Iterator[Any]:
    """A .json file is one list of rows, one row, or lines in spite of its name, as the hub reads it too."""
    if not _has_lines(file):
        text = b"".join(lines_of(file)).removeprefix(codecs.BOM_UTF8)
        try:
            whole = load_exact(text)
        except ValueError as error:
            raise OperatorError(f"{file} cannot be read: it is not JSON: {error}") from error
        yield from whole if isinstance(whole, list) else [whole]
        return
    for number, line in enumerate(lines_of(file), 1):
        if line.strip():
            try:
                yield parsed(line, number)
            except ValueError as error:
                raise OperatorError(f"{file} cannot be read: line {number}{error}") from error


def _has_lines(file: Path) -> bool:
    """Whether it is read line by line: its name says so, or its first line is a row by itself."""
    form = file.name.removeprefix(stem_of(file.name))
    if form.startswith(".jsonl") or not form.startswith(".json"):
        return True
    first = next((line for line in lines_of(file) if line.strip()), b"")
    try:
        return isinstance(orjson.loads(first.removeprefix(codecs.BOM_UTF8)), dict)
    except orjson.JSONDecodeError:
        return False
