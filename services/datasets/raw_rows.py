"""Rows as they were published, before a `prepare.py` makes tasks of them: any objects, of one file or of several."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollyard.services.datasets.data_files import lines_of
from rollyard.services.datasets.rows import exact_objects
from rollyard.services.datasets.split_names import stem_of
from rollyard.services.errors import OperatorError
from rollyard.services.io.json_values import json_kind
from rollyard.services.io.jsonl import ParsedLine, hand_over, iter_jsonl
from rollyard.services.io.lines import with_offsets
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
            for row in _objects(file):
                self.file = file
                yield row


def _objects(file: Path) -> Iterator[Json]:
    """A .json file is one list of rows, one row, or lines in spite of its name, as the hub reads it too."""
    if _has_lines(file):
        yield from (line.value for line in exact_objects(file))
        return
    text = b"".join(lines_of(file)).removeprefix(codecs.BOM_UTF8)
    try:
        whole = load_exact(text)
    except ValueError as error:
        raise OperatorError(f"{file} cannot be read: it is not JSON: {error}") from error
    for number, row in enumerate(whole if isinstance(whole, list) else [whole], 1):
        if not isinstance(row, dict):
            raise OperatorError(f"{file}: row {number} is {json_kind(row)}; expected an object")
        yield row


def _has_lines(file: Path) -> bool:
    """Whether it is read line by line: its name says so, or its first line is a row by itself."""
    form = file.name.removeprefix(stem_of(file.name))
    if form.startswith(".jsonl") or not form.startswith(".json"):
        return True
    first = next(iter_jsonl(with_offsets(lines_of(file)), hand_over), None)
    return isinstance(first, ParsedLine)
