"""Dataset: the rows of one file under ids that stay the same from run to run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import orjson

from services.data.settings import DatasetSettings
from services.data.where import matches
from services.errors import OperatorError
from services.roots import find_file
from services.rows import agent_of, row_at, rows_of
from services.s3 import read_text
from services.types import Json

ID_KEYS = ("prompt_id", "task_id", "id", "level_id")
"""Keys under which rows name themselves; the first one that is there counts."""
_MARKS = frozenset({*ID_KEYS, "agent_ref", "dataset_name", "uuid"})


class Dataset:
    """A file's rows that pass the filter: their ids and places. Rows are read when they are asked for."""

    def __init__(self, settings: DatasetSettings, roots: Iterable[Path]) -> None:
        """Reads the file once. Raises OperatorError: no such file, a bad row, an id twice, nothing left of it."""
        self.name = settings.name
        self.path = self.place(settings, roots)
        self._places: dict[str, tuple[int, str | None]] = {}
        """Id -> where the row begins, and who plays it."""
        digest = hashlib.sha256()
        for row in rows_of(self.path):
            if row.problem:
                raise OperatorError(f"{self.path}: line {row.line}{row.problem}")
            if not matches(row.value, settings.where):
                continue
            name = self._free(row_id(row.value), row.value, row.line)
            self._places[name] = (row.offset, agent_of(row.value) or settings.agent_name)
            digest.update(orjson.dumps(row.value))
        if not self._places:
            why = f"no row with {settings.where}" if settings.where else "no rows"
            raise OperatorError(f"data set {self.name!r}: {self.path} holds {why}")
        self.digest = digest.hexdigest()
        self.order: list[str] | None = None
        """Ids in the curriculum's order; None where there is none."""
        self.unknown: list[str] = []
        """Ids of the curriculum that the file does not have."""
        if settings.order is not None:
            self._follow(settings.order)

    @staticmethod
    def place(settings: DatasetSettings, roots: Iterable[Path]) -> Path:
        """The data set's file. Raises OperatorError when it is not there."""
        path = settings.path or Path(f"resources_servers/{settings.name}/data/{settings.split}.jsonl")
        found = find_file(path, roots)
        if found is None:
            hint = "" if settings.path else f"; make it with resources_servers/{settings.name}/prepare.py, or say path"
            raise OperatorError(f"data set {settings.name!r}: {path} is not there{hint}")
        return found

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ids(self) -> Sequence[str]:
        """In the file's order."""
        return list(self._places)

    def agent(self, name: str) -> str | None:
        """Who plays the row of an id; None where neither it nor the settings say."""
        return self._places[name][1]

    def row(self, name: str) -> Json:
        """The row of an id, marked with it, its data set and who plays it."""
        row = row_at(self.path, self._places[name][0])
        marked = {"prompt_id": name, "dataset_name": self.name, **row}
        if (agent := self.agent(name)) is not None:
            marked["agent_ref"] = {**(row.get("agent_ref") or {}), "name": agent}
        return marked

    def _free(self, name: str, row: Json, line: int) -> str:
        """The id, numbered where an equal row has it already."""
        if name not in self._places:
            return name
        if any(row.get(key) is not None for key in ID_KEYS):
            raise OperatorError(f"{self.path}: line {line} has the id {name!r} of an earlier row; ids must be unique")
        number = 2
        while f"{name}#{number}" in self._places:
            number += 1
        return f"{name}#{number}"

    def _follow(self, place: str) -> None:
        wanted = [line.strip() for line in read_text(place).split("\n") if line.strip()]
        order = [name for name in dict.fromkeys(wanted) if name in self._places]
        self.unknown = [name for name in dict.fromkeys(wanted) if name not in self._places]
        if not order:
            known = ", ".join(islice(self._places, 3))
            raise OperatorError(
                f"order file {place}: none of its {len(wanted)} ids is one of data set {self.name!r} ({known}, ...)"
            )
        self.order = order


def row_id(row: Json) -> str:
    """The row's own id, else one made of what it says, so that another order of lines changes nothing."""
    for key in ID_KEYS:
        if (own := row.get(key)) is not None:
            return str(own)
    return f"row_{fingerprint(row)[:16]}"


def fingerprint(row: Json) -> str:
    """Equal for rows that ask the same: everything but ids, names of data sets and who plays."""
    told = {key: value for key, value in row.items() if key not in _MARKS}
    return hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()
