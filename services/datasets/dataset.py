"""Dataset: the rows of one file under ids that stay the same from run to run."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import orjson

from rollyard.services.datasets.data_files import DataFile, DataFiles, is_plain
from rollyard.services.datasets.filters import describe, matches
from rollyard.services.datasets.rows import ID_KEYS, agent_of, id_of_row, row_at, rows_of
from rollyard.services.datasets.settings import DatasetSettings
from rollyard.services.datasets.temporary_copy import TemporaryCopy
from rollyard.services.errors import OperatorError
from rollyard.services.io.s3 import read_text
from rollyard.services.types import Json

_MARKS = frozenset({*ID_KEYS, "agent_ref", "dataset_name", "uuid"})


class Dataset:
    """A file's rows that pass the filter: their ids and places. Rows are read when they are asked for.

    Compressed files and tables have no places to go back to: their rows that pass are copied to a temporary file.
    """

    def __init__(self, settings: DatasetSettings, files: DataFiles) -> None:
        """Reads the file once. Raises OperatorError: no such file, a bad row, an id twice, nothing left of it."""
        self.name = settings.name
        self.file = self.place(settings, files)
        unpacked = None if is_plain(self.file) else TemporaryCopy(str(self.file))
        self._rows: DataFile = unpacked or self.file
        """Where rows are found again."""
        self._places: dict[str, int] = {}
        """Id -> the row's number in the arrays that follow."""
        self._offsets, self._marks = array("q"), array("q")
        """Byte where each row begins, and a hash of its line."""
        self._agents: list[str | None] = []
        digest = hashlib.sha256()
        keys: list[str] = []
        for row in rows_of(self.file):
            if row.problem:
                raise OperatorError(f"{self.file}: line {row.line}{row.problem}")
            keys = keys or list(row.value)
            if settings.where and not matches(row.value, settings.where):
                continue
            name = self._free(row_id(row.value), row.value, row.line)
            self._places[name] = len(self._offsets)
            offset, mark = row.offset, row.mark
            if unpacked is not None:
                offset, mark = unpacked.append(row.text + b"\n"), hash(row.text + b"\n")
            self._offsets.append(offset)
            self._marks.append(mark)
            self._agents.append(agent_of(row.value) or settings.agent_name)
            digest.update(row.text)
        if not self._places:
            why = "no rows"
            if keys:
                why = f"no row with {describe(settings.where)} (its first row has {', '.join(keys)})"
            raise OperatorError(f"data set {self.name!r}: {self.file} holds {why}")
        self.digest = digest.hexdigest()
        self.order: list[str] | None = None
        """Ids in the curriculum's order; None where there is none."""
        self.unknown: list[str] = []
        """Ids of the curriculum that are not among the data set's."""
        self.named_again = 0
        """Lines of the curriculum that repeat an id."""
        if settings.order is not None:
            self._follow(settings.order)

    @staticmethod
    def place(settings: DatasetSettings, files: DataFiles) -> Path | TemporaryCopy:
        """The data set's file. Raises OperatorError when it is not there."""
        path = settings.path or f"resources_servers/{settings.name}/data/{settings.split}.jsonl"
        found = files.find(path)
        if found is None:
            raise OperatorError(f"data set {settings.name!r}: {path} {_why_missing(path, settings, files.roots)}")
        return found

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ids(self) -> Sequence[str]:
        """In the file's order."""
        return list(self._places)

    def agent(self, name: str) -> str | None:
        """Who plays the row of an id; None where neither it nor the settings say."""
        return self._agents[self._places[name]]

    def row(self, name: str) -> Json:
        """The row of an id, marked with it, its data set and who plays it. Raises OperatorError if the file changed."""
        number = self._places[name]
        try:
            row = row_at(self._rows, self._offsets[number], self._marks[number])
        except OperatorError as error:
            raise OperatorError(f"data set {self.name!r}, row {name!r}: {error}") from error
        marks: Json = {"prompt_id": name, "dataset_name": self.name}
        marked = {**marks, **row, **{key: mark for key, mark in marks.items() if row.get(key) is None}}
        if (agent := self.agent(name)) is not None:
            marked["agent_ref"] = {**(row.get("agent_ref") or {}), "name": agent}
        return marked

    def _free(self, name: str, row: Json, line: int) -> str:
        """The id, numbered where an equal row has it already."""
        if name not in self._places:
            return name
        if id_of_row(row) is not None:
            raise OperatorError(
                f"{self.file}: line {line} has the id {name!r} of an earlier row; ids must be unique. Number the rows "
                f"anew, or leave {', '.join(ID_KEYS)} out: ids are then made of what the rows say"
            )
        number = 2
        while f"{name}#{number}" in self._places:
            number += 1
        return f"{name}#{number}"

    def _follow(self, place: str) -> None:
        lines = [line.strip() for line in read_text(place).split("\n") if line.strip()]
        wanted = dict.fromkeys(lines)
        self.named_again = len(lines) - len(wanted)
        order = [name for name in wanted if name in self._places]
        self.unknown = [name for name in wanted if name not in self._places]
        if not order:
            what = f"none of its {len(wanted)} ids is" if wanted else "it holds no ids; expected an id a line, each"
            known = ", ".join(islice(self._places, 3))
            raise OperatorError(f"order file {place}: {what} one of data set {self.name!r} ({known}, ...)")
        self.order = order


def row_id(row: Json) -> str:
    """The row's own id, else one made of what it says, so that another order of lines changes nothing."""
    own = id_of_row(row)
    return f"row_{fingerprint(row)[:16]}" if own is None else own


def fingerprint(row: Json) -> str:
    """Equal for rows that ask the same: everything but ids, names of data sets and who plays."""
    told = {key: value for key, value in row.items() if key not in _MARKS}
    return hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _why_missing(path: str, settings: DatasetSettings, roots: Iterable[Path]) -> str:
    if any((root / path).is_dir() for root in roots):
        return "is a folder; name the file in it"
    make = "" if settings.path else f"; make it with resources_servers/{settings.name}/prepare.py, or say path"
    return f"is not there (looked in {', '.join(map(str, roots))}){make}"
