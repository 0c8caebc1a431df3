"""Reads the rows of a published dataset, from which a `prepare.py` creates tasks. A row may be any JSON object."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollyard.records.data_files import lines_of
from rollyard.records.errors import OperatorError
from rollyard.records.json_values import json_kind
from rollyard.records.jsonl import ParsedLine, hand_over, iter_jsonl, with_offsets
from rollyard.records.rows import exact_objects
from rollyard.records.strict_json import load_exact
from rollyard.records.types import Json
from rollyard.services.datasets.splits import stem_of


class RawRows:
    """The rows of several files, in order."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.file: Path | None = None
        """The file that contains the last row read."""

    def __iter__(self) -> Iterator[Json]:
        """Raises OperatorError if a file is unreadable or a row is not an object."""
        for file in self._files:
            for row in _objects(file):
                self.file = file
                yield row


def _objects(file: Path) -> Iterator[Json]:
    """Yield the rows of a file.

    As on the Hugging Face hub, a .json file may contain a list of rows, a single row, or JSON Lines.
    """
    if _has_lines(file):
        yield from (line.value for line in exact_objects(file))
        return
    text = b"".join(lines_of(file)).removeprefix(codecs.BOM_UTF8)
    try:
        content = load_exact(text)
    except ValueError as error:
        raise OperatorError(f"{file} is not valid JSON: {error}") from error
    for number, row in enumerate(content if isinstance(content, list) else [content], 1):
        if not isinstance(row, dict):
            raise OperatorError(f"{file}: row {number} is {json_kind(row)}; expected an object")
        yield row


def _has_lines(file: Path) -> bool:
    """Return whether to read the file line by line: it is not a .json file, or its first line is a complete row."""
    suffix = file.name.removeprefix(stem_of(file.name))
    if suffix.startswith(".jsonl") or not suffix.startswith(".json"):
        return True
    first = next(iter_jsonl(with_offsets(lines_of(file)), hand_over), None)
    return isinstance(first, ParsedLine)
