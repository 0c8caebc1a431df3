"""survey: what is in the files of a data set, what is wrong with them, and what they share with others."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

from rollyard.services.datasets.data_files import DataFile
from rollyard.services.datasets.dataset import fingerprint
from rollyard.services.datasets.overlap import KINDS, USUAL_RUN, Match, TestSets
from rollyard.services.datasets.rows import agent_of, id_of_row, rows_of
from rollyard.services.datasets.spread import Spread, spread
from rollyard.services.types import Json, Record

FIRST = 20
"""Problems and repetitions that are told one by one."""

R = TypeVar("R")


class Problem(Record):
    """A row that cannot be played."""

    line: int
    problem: str


class Repetition(Record):
    """A row that was there before."""

    line: int
    path: str
    """Where it was: the file, and its line."""
    first_line: int


class FileReport(Record):
    """One file."""

    path: str
    rows: int
    """That can be played."""
    problems: int
    first_problems: list[Problem]
    agents: dict[str, int]
    """Who plays how many; '' where the row does not say."""
    keys: dict[str, int]
    """Top-level keys and how many rows have them."""
    prompt_characters: Spread | None
    """Of all texts in `input`."""
    repeated_ids: int
    """Rows with the id of an earlier one of this file: a mixture refuses them."""
    first_repeated_ids: list[Problem]
    duplicates: int
    """Rows that ask the same as an earlier one of any of the files: equal but for ids and players."""
    first_duplicates: list[Repetition]
    overlap: dict[str, int]
    """Rows that are in one of the files to be kept apart from, too, by how it is known: the same row (equal but for ids
    and players), the same id, the same question, or words in common. A row may be of several kinds."""
    first_overlap: list[Match]
    """The first of each kind."""


def validate(files: Iterable[DataFile], against: Iterable[DataFile] = (), *, run: int = USUAL_RUN) -> list[FileReport]:
    """Read each of `files` once; `against`: files that must hold other tasks (a test set); `run`: words in a row that
    make two rows overlap. Raises OperatorError.
    """
    apart = TestSets(against, run)
    seen = _Seen()
    return [_file(file, seen, apart) for file in files]


class _Seen:
    """Fingerprints of rows and where the first of equal ones was; millions of them, so a number says where."""

    def __init__(self) -> None:
        self._files: list[DataFile] = []
        self._places: dict[bytes, int] = {}

    def begin(self, file: DataFile) -> None:
        """The rows that follow are of this file."""
        self._files.append(file)

    def add(self, task: bytes, line: int) -> None:
        """Remember a row; the first of equal ones stays."""
        self._places.setdefault(task, line << 16 | len(self._files) - 1)

    def earlier(self, task: bytes, line: int) -> Repetition | None:
        """The row at `line` as a repetition of an earlier one; None where it is none."""
        place = self._places.get(task)
        if place is None:
            return None
        return Repetition(line=line, path=str(self._files[place & 0xFFFF]), first_line=place >> 16)


class _Told(Generic[R]):
    """Counts all and keeps the first."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[R] = []

    def add(self, one: R) -> None:
        """One more."""
        self.count += 1
        if self.count <= FIRST:
            self.first.append(one)


def _file(file: DataFile, seen: _Seen, apart: TestSets) -> FileReport:
    problems, repeated_ids = _Told[Problem](), _Told[Problem]()
    duplicates = _Told[Repetition]()
    overlap = {kind: _Told[Match]() for kind in KINDS}
    ids = set[int]()
    agents, keys = Counter[str](), Counter[str]()
    lengths = array("q")
    seen.begin(file)
    for row in rows_of(file):
        if row.problem:
            problems.add(Problem(line=row.line, problem=row.problem.lstrip(": ")))
            continue
        task = _short(row.value)
        if (repetition := seen.earlier(task, row.line)) is not None:
            duplicates.add(repetition)
        if len(apart):
            for match in apart.matches(row.value, row.line):
                overlap[match.kind].add(match)
        seen.add(task, row.line)
        if (own := id_of_row(row.value)) is not None:
            # Hashes take a third of the memory; that two ids share one of 2^61 does not happen.
            if hash(own) in ids:
                repeated_ids.add(Problem(line=row.line, problem=f"has the id {own!r} of an earlier row"))
            ids.add(hash(own))
        agents[agent_of(row.value) or ""] += 1
        keys.update(row.value.keys())
        lengths.append(sum(map(len, texts(row.value))))
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
        overlap={kind: told.count for kind, told in overlap.items()},
        first_overlap=[match for told in overlap.values() for match in told.first],
    )


def texts(row: Json) -> list[str]:
    """What the prompt says, message by message; for a row whose prompt its environment makes, the fields' texts."""
    asked = row.get("responses_create_params", {}).get("input")
    if asked is None:
        return [value for value in row.values() if isinstance(value, str)]
    if isinstance(asked, str):
        return [asked]
    said: list[str] = []
    for item in asked:
        content = item.get("content") if isinstance(item, dict) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                said.append(text)
    return said


def _short(row: Json) -> bytes:
    return bytes.fromhex(fingerprint(row))[:16]
