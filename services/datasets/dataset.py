"""Dataset: the rows of one file, each with an id that is stable across runs."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path

import orjson

from rollyard.records.data_files import DataFile, DataFiles, TemporaryCopy, is_plain, with_columns
from rollyard.records.errors import OperatorError
from rollyard.records.rows import ID_KEYS, agent_of, exact_objects, id_of_row, row_at, rows_of
from rollyard.records.s3 import read_text
from rollyard.records.types import Json
from rollyard.services.datasets.settings import DatasetSettings, describe, matches

_NOT_PART_OF_TASK = frozenset({*ID_KEYS, "agent_ref", "dataset_name", "uuid"})


class Dataset:
    """The ids and byte offsets of the rows in a file that match the filter. Rows are read on demand.

    Compressed files and tables have no offsets to seek to, so their matching rows are copied to a temporary file.
    """

    def __init__(self, settings: DatasetSettings, files: DataFiles) -> None:
        """Read the file once.

        Raises OperatorError if the file is missing, has an invalid row or a duplicate id, or has no row that matches
        the filter.
        """
        self.name = settings.name
        self.source = self.resolve_file(settings, files)
        """The file that the user named."""
        self.file = with_settings(self.source, settings)
        unpacked = None if is_plain(self.file) else TemporaryCopy(str(self.file))
        self._rows: DataFile = unpacked or self.file
        """The file that `row` reads from."""
        self._numbers: dict[str, int] = {}
        """Id -> the row's index in `_offsets`, `_line_hashes` and `_agents`."""
        self._offsets, self._line_hashes = array("q"), array("q")
        """The byte offset of each row in `_rows`, and the hash of its line."""
        self._agents: list[str | None] = []
        digest = hashlib.sha256()
        keys: list[str] = []
        excluded: set[str] = set()
        for row in rows_of(self.file):
            if row.problem:
                raise OperatorError(f"{self.file}: line {row.line}{row.problem}")
            keys = keys or list(row.value)
            if settings.where and not matches(row.value, settings.where):
                if settings.order is not None:
                    excluded.add(id_or_fingerprint(row.value))
                continue
            name = self._unique_id(id_or_fingerprint(row.value), row.value, row.line)
            self._numbers[name] = len(self._offsets)
            offset, line_hash = row.offset, row.line_hash
            if unpacked is not None:
                offset, line_hash = unpacked.append(row.text + b"\n"), hash(row.text + b"\n")
            self._offsets.append(offset)
            self._line_hashes.append(line_hash)
            self._agents.append(agent_of(row.value) or settings.agent_name)
            digest.update(row.text)
        if not self._numbers:
            why = "no rows"
            if keys:
                why = f"no row that matches {describe(settings.where)} (keys in the first row: {', '.join(keys)})"
            raise OperatorError(f"dataset {self.name!r}: {self.file} has {why}")
        self.digest = digest.hexdigest()
        self.order: list[str] | None = None
        """Ids in the order of the curriculum; None if there is no curriculum."""
        self.repeated_in_order = 0
        """Number of lines in the curriculum that repeat an earlier id."""
        if settings.order is not None:
            self._read_order(settings.order, excluded)

    @staticmethod
    def resolve_file(settings: DatasetSettings, files: DataFiles) -> Path | TemporaryCopy:
        """Return the dataset's file. Raises OperatorError if it does not exist."""
        path = settings.path or f"resources_servers/{settings.name}/data/{settings.split}.jsonl"
        found = files.find(path)
        if found is None:
            raise OperatorError(f"dataset {settings.name!r}: {path} {_why_missing(path, settings, files.roots)}")
        return found

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def ids(self) -> Sequence[str]:
        return list(self._numbers)

    def agent(self, name: str) -> str | None:
        """Return the name of the row's agent; None if neither the row nor the settings specify an agent."""
        return self._agents[self._numbers[name]]

    def row(self, name: str) -> Json:
        """Return the row with its id, dataset name and agent added. Raises OperatorError if it has changed."""
        number = self._numbers[name]
        try:
            row = row_at(self._rows, self._offsets[number], self._line_hashes[number])
        except OperatorError as error:
            raise OperatorError(f"dataset {self.name!r}, row {name!r}: {error}") from error
        defaults: Json = {"prompt_id": name, "dataset_name": self.name}
        completed = {**defaults, **row, **{key: value for key, value in defaults.items() if row.get(key) is None}}
        if (agent := self.agent(name)) is not None:
            completed["agent_ref"] = {**(row.get("agent_ref") or {}), "name": agent}
        return completed

    def _unique_id(self, name: str, row: Json, line: int) -> str:
        """Return `name`, with a number appended if an identical row already uses it.

        Raises OperatorError if a different row has the same id.
        """
        if name not in self._numbers:
            return name
        if id_of_row(row) is not None:
            raise OperatorError(
                f"{self.file}: line {line} has the same id as an earlier row ({name!r}); ids must be unique. Renumber "
                f"the rows, or remove {', '.join(ID_KEYS)} to have ids derived from the rows' contents"
            )
        number = 2
        while f"{name}#{number}" in self._numbers:
            number += 1
        return f"{name}#{number}"

    def _read_order(self, path: str, excluded: Collection[str]) -> None:
        """`excluded`: ids of rows that do not match the filter."""
        lines = [line.strip() for line in read_text(path).split("\n") if line.strip()]
        ordered = dict.fromkeys(lines)
        self.repeated_in_order = len(lines) - len(ordered)
        order = [name for name in ordered if name in self._numbers]
        unknown = [name for name in ordered if name not in self._numbers and name not in excluded]
        if unknown or not order:
            what = "it contains no ids of rows that match; expected one id per line, each"
            if unknown:
                more = f" and {len(unknown) - 1:,} more of its {len(ordered):,} ids are" if len(unknown) > 1 else " is"
                what = f"{unknown[0]!r}{more} not"
            known = ", ".join(islice(self._numbers, 3))
            raise OperatorError(f"order file {path}: {what} in dataset {self.name!r} ({known}, ...)")
        self.order = order


def with_settings(file: DataFile, settings: DatasetSettings) -> DataFile:
    """Return the file, or a copy with the settings' columns and prompt. Raises OperatorError if a row lacks a field."""
    if not settings.columns and settings.prompt is None:
        return file
    copy = TemporaryCopy(f"{file} (with columns and prompt)")
    for number, found in enumerate(exact_objects(file), 1):
        try:
            copy.append(orjson.dumps(with_columns(found.value, settings.columns, settings.prompt)) + b"\n")
        except ValueError as error:
            raise OperatorError(f"{file}: row {number}: {error}") from error
    return copy


def id_or_fingerprint(row: Json) -> str:
    """Return the row's own id, or one derived from its contents, which does not depend on the order of the rows."""
    own = id_of_row(row)
    return f"row_{fingerprint(row)[:16]}" if own is None else own


def fingerprint(row: Json) -> str:
    """Return a hash of the row without ids, dataset name and agent, so that duplicate tasks have equal hashes."""
    task_fields = {key: value for key, value in row.items() if key not in _NOT_PART_OF_TASK}
    return hashlib.sha256(orjson.dumps(task_fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _why_missing(path: str, settings: DatasetSettings, roots: Iterable[Path]) -> str:
    if any((root / path).is_dir() for root in roots):
        return "is a folder; pass a file in it"
    hint = "" if settings.path else f"; create it with resources_servers/{settings.name}/prepare.py, or set path"
    return f"does not exist (looked in {', '.join(map(str, roots))}){hint}"
