"""Settings for a mixture of datasets, from a YAML file or from `--data {...}` on the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from rollyard.records.errors import OperatorError
from rollyard.records.json_values import is_number, json_kind
from rollyard.records.search_path import resolve
from rollyard.records.types import Json
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
