"""Validates dataset files: reports their contents, invalid and duplicate rows, and overlap with other files."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

from rollyard.records.data_files import DataFile
from rollyard.records.rows import agent_of, id_of_row, messages_of, rows_of
from rollyard.records.scores import Spread, spread
from rollyard.records.types import Json, Record
from rollyard.services.datasets.overlap import KINDS, Match, TestSets, row_hash

MAX_LISTED = 20
"""Maximum number of problems and duplicates that are listed individually."""

R = TypeVar("R")


class RowProblem(Record):
    line: int
    problem: str


class Repetition(Record):
    line: int
    path: str
    """The file that contains the earlier row, on line `first_line`."""
    first_line: int


class FileReport(Record):
    path: str
    rows: int
    """Number of valid rows."""
    problems: int
    first_problems: list[RowProblem]
    agents: dict[str, int]
    """Agent -> number of rows; '' for rows without an agent."""
    keys: dict[str, int]
    """Top-level key -> number of rows that have it."""
    prompt_characters: Spread | None
    """Number of characters in the prompt, per row."""
    repeated_ids: int
    """Number of rows with the same id as an earlier row of this file. A mixture rejects such a file."""
    first_repeated_ids: list[RowProblem]
    duplicates: int
    """Number of duplicate tasks: rows that equal an earlier row of any file, except for ids and agents."""
    first_duplicates: list[Repetition]
    overlap: dict[str, int]
    """Number of rows that overlap with a test set, by kind: the same row (except for ids and agents), the same id, or
    the same question. A row may be counted under several kinds."""
    first_overlap: list[Match]
    """The first matches of each kind."""


def validate(files: Iterable[DataFile], against: Iterable[DataFile] = ()) -> list[FileReport]:
    """Report on each of `files`. `against`: files that must contain different tasks. Raises OperatorError."""
    test_sets = TestSets(against)
    seen = _Seen()
    return [_file(file, seen, test_sets) for file in files]


class _Seen:
    """Remembers where each row first occurred. File and line are packed into one integer to save memory."""

    def __init__(self) -> None:
        self._files: list[DataFile] = []
        self._origins: dict[bytes, int] = {}

    def start_file(self, file: DataFile) -> None:
        self._files.append(file)

    def add(self, task: bytes, line: int) -> None:
        self._origins.setdefault(task, line << 16 | len(self._files) - 1)

    def earlier(self, task: bytes, line: int) -> Repetition | None:
        origin = self._origins.get(task)
        if origin is None:
            return None
        return Repetition(line=line, path=str(self._files[origin & 0xFFFF]), first_line=origin >> 16)


class _Listed(Generic[R]):
    """Counts all items, but stores only the first MAX_LISTED."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[R] = []

    def add(self, item: R) -> None:
        self.count += 1
        if self.count <= MAX_LISTED:
            self.first.append(item)


def _file(file: DataFile, seen: _Seen, test_sets: TestSets) -> FileReport:
    problems, repeated_ids = _Listed[RowProblem](), _Listed[RowProblem]()
    duplicates = _Listed[Repetition]()
    overlap = {kind: _Listed[Match]() for kind in KINDS}
    ids = set[int]()
    agents, keys = Counter[str](), Counter[str]()
    lengths = array("q")
    seen.start_file(file)
    for row in rows_of(file):
        if row.problem:
            problems.add(RowProblem(line=row.line, problem=row.problem.lstrip(": ")))
            continue
        task = row_hash(row.value)
        if (repetition := seen.earlier(task, row.line)) is not None:
            duplicates.add(repetition)
        if len(test_sets):
            for match in test_sets.matches(row.value, row.line):
                overlap[match.kind].add(match)
        seen.add(task, row.line)
        if (own_id := id_of_row(row.value)) is not None:
            # Hashes take a third of the memory of ids; collisions among 2^61 values are negligible.
            if hash(own_id) in ids:
                repeated_ids.add(RowProblem(line=row.line, problem=f"has the same id as an earlier row ({own_id!r})"))
            ids.add(hash(own_id))
        agents[agent_of(row.value) or ""] += 1
        keys.update(row.value.keys())
        lengths.append(_prompt_length(row.value))
    return FileReport(
        path=str(file),
        rows=len(lengths),
        problems=problems.count,
        first_problems=problems.first,
        agents=dict(agents.most_common()),
        keys=dict(keys.most_common()),
        prompt_characters=spread(np.asarray(lengths, np.float64)),
        repeated_ids=repeated_ids.count,
        first_repeated_ids=repeated_ids.first,
        duplicates=duplicates.count,
        first_duplicates=duplicates.first,
        overlap={kind: listed.count for kind, listed in overlap.items()},
        first_overlap=[match for listed in overlap.values() for match in listed.first],
    )


def _prompt_length(row: Json) -> int:
    """Return the characters of the prompt, or of all texts of the row if the environment builds the prompt."""
    if row.get("responses_create_params", {}).get("input") is None:
        return sum(len(value) for value in row.values() if isinstance(value, str))
    return sum(len(message["content"]) for message in messages_of(row))
