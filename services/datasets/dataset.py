"""Dataset: the rows of one file, each with an id that is stable across runs; and the settings of datasets."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from rollyard.records.data_files import DataFile, DataFiles, TemporaryCopy, is_plain, resolve, with_columns
from rollyard.records.errors import OperatorError
from rollyard.records.rows import ID_KEYS, agent_of, exact_objects, id_of_row, row_at, rows_of
from rollyard.records.s3 import read_text
from rollyard.records.types import Json, is_number, json_kind
from rollyard.services.server.settings import parse_settings

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Range:
    """A range of numbers from `min` to `max`, both inclusive; None leaves that side unbounded."""

    min: float | None = None
    max: float | None = None

    def __str__(self) -> str:
        sides = {"min": self.min, "max": self.max}
        return "{" + ", ".join(f"{side}: {bound:g}" for side, bound in sides.items() if bound is not None) + "}"


def condition(value: Any) -> Range | list[Scalar] | Scalar:
    """Parse a condition from the settings. Raises ValueError, with a readable message, if it is invalid."""
    if value is None or isinstance(value, Scalar | Range):
        return value
    if isinstance(value, list) and value and all(item is None or isinstance(item, Scalar) for item in value):
        return value
    bounds = {side: bound for side, bound in value.items() if bound is not None} if isinstance(value, dict) else {}
    if bounds and bounds.keys() <= {"min", "max"} and all(is_number(bound, math.inf) for bound in bounds.values()):
        numeric_range = Range(**bounds)
        if numeric_range.min is not None and numeric_range.max is not None and numeric_range.min > numeric_range.max:
            raise ValueError(f"{numeric_range} is empty: min is greater than max")
        return numeric_range
    raise ValueError("expected a value, a list of values, or {min: 3, max: 8} with min, max or both")


Condition = Annotated[Range | list[Scalar] | Scalar, PlainValidator(condition)]
"""A range, a list of accepted values, or a single value."""


def matches(row: Json, where: Mapping[str, Condition]) -> bool:
    """Return whether the row satisfies all conditions. Dots separate nested keys; a missing key matches only null."""
    return all(_satisfies(_value(row, key), condition) for key, condition in where.items())


def describe(where: Mapping[str, Condition]) -> str:
    """Return the conditions as they are written in the settings."""
    return ", ".join(f"{key}: {condition}" for key, condition in where.items())


def _value(row: Json, key: str) -> Any:
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _satisfies(value: Any, condition: Condition) -> bool:
    if isinstance(condition, Range):
        if not is_number(value):
            return False
        return (condition.min is None or value >= condition.min) and (condition.max is None or value <= condition.max)
    return any(_same(value, expected) for expected in (condition if isinstance(condition, list) else [condition]))


def _same(value: Any, expected: Scalar) -> bool:
    # In JSON, true is not equal to 1, whereas in Python it is.
    return isinstance(value, bool) == isinstance(expected, bool) and value == expected


class DatasetSettings(BaseModel):
    """One dataset in a mixture. Several datasets may use the same file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Value of `dataset_name` in its rows, unless a row already has one."""
    path: str | None = None
    """The file with its rows, local or s3://: JSON Lines, CSV or TSV, optionally compressed (gzip, bzip2, xz, zstd),
    Parquet or Arrow; or a folder that `save_to_disk` of `datasets` wrote (s3://bucket/folder/).
    Default: resources_servers/<name>/data/<split>.jsonl, which the environment's prepare.py writes."""
    split: str = "train"
    """The split that is inserted into the default path."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """In mode `weighted`, how often a row is drawn from this dataset, relative to the others, until it is exhausted.
    Every row is used exactly once, whatever the weights are."""
    count: int | None = Field(default=None, ge=1)
    """Number of rows to use: the first of `order`, or a selection determined by the seed."""
    order: str | None = None
    """The order of the rows in all epochs (a curriculum): a text file, local or s3://, with one id per line. Rows that
    are not listed in it are not used."""
    shuffle: bool = True
    """Shuffle the rows. If false, they stay in file order. Ignored if `order` is set."""
    where: dict[str, Condition] = Field(default_factory=dict)
    """Use only the rows that satisfy all conditions, such as
    {difficulty: easy, num_boxes: [1, 2], optimal_moves: {min: 3, max: 8}}."""
    agent_name: str | None = None
    """The agent for rows that have no agent_ref."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Fields to make from columns with other names, such as {question: problem, expected_answer: solution}."""
    prompt: str | None = None
    """The user message of each row: a text in which {name} stands for the field of that name."""


class MixtureSettings(BaseModel):
    """Several datasets that are used as one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    dataset: Literal["mixed"] = "mixed"
    """Accepted for compatibility with files written for other trainers."""
    mode: Literal["weighted", "sequential"] = "weighted"
    """`weighted` interleaves the datasets according to their weights; `sequential` uses one after the other."""
    seed: int = 42
    """Seed for shuffling and interleaving the datasets."""
    epoch: int = Field(default=0, ge=0)
    """Number of the epoch, starting at 0. Shuffled datasets have a different order in every epoch."""
    datasets: list[DatasetSettings] = Field(min_length=1)


def read_mixture(data: str | dict[str, Any], roots: Sequence[Path]) -> MixtureSettings:
    """Read the settings of a mixture. `data`: the path of a YAML file, or the settings themselves.

    In the file, the settings may be nested under the key `data`. {file: mix.yaml, epoch: 3} reads the file and
    overrides its epoch. Raises OperatorError if the file cannot be read or the settings are invalid.
    """
    settings = {"file": data} if isinstance(data, str) else dict(data)
    if (file := settings.pop("file", None)) is None:
        return parse_settings(MixtureSettings, settings, "data")
    path = resolve(Path(str(file)), roots)
    return parse_settings(MixtureSettings, {**_read_yaml(path), **settings}, str(path))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if isinstance(tree, dict) and isinstance(tree.get("data"), dict):
        tree = tree["data"]
    if not isinstance(tree, dict):
        found = "empty" if tree is None else json_kind(tree)
        raise OperatorError(f"{path} is {found}; expected mode, seed and datasets")
    return tree


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
