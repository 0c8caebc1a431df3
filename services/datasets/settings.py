"""What a user says of a mixture of data sets: a YAML file, or `+data={...}` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from rollyard.services.datasets.filters import Condition
from rollyard.services.errors import OperatorError
from rollyard.services.io.json_values import json_kind
from rollyard.services.io.search_path import resolve
from rollyard.services.server.settings import parse_settings


class DatasetSettings(BaseModel):
    """One data set of a mixture. The same file may stand in several."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Marks its rows (`dataset_name`), but for those that a mixture has marked already."""
    path: str | None = None
    """Its rows, here or at s3://: JSON Lines, as they are or compressed (gzip, bzip2, xz, zstd), Parquet or Arrow;
    default: resources_servers/<name>/data/<split>.jsonl, where that world's prepare.py puts them."""
    split: str = "train"
    """Only names the default path."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Mode `weighted`: how often it is drawn while it lasts. Every row appears once whatever the weight."""
    count: int | None = Field(default=None, ge=1)
    """Use so many rows: the first of `order`, or some chosen by the seed."""
    order: str | None = None
    """A curriculum: a text file, here or at s3://, with an id a line. Kept in every epoch; ids not in it are unused."""
    shuffle: bool = True
    """False: without an `order`, the file's own."""
    where: dict[str, Condition] = Field(default_factory=dict)
    """Only rows of which all hold: {difficulty: easy, num_boxes: [1, 2], optimal_moves: {min: 3, max: 8}}."""
    agent_name: str | None = None
    """Who plays its rows that have no agent_ref of their own."""


class MixtureSettings(BaseModel):
    """Any number of data sets, as one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    dataset: Literal["mixed"] = "mixed"
    """So that files written for other trainers read."""
    mode: Literal["weighted", "sequential"] = "weighted"
    """`weighted`: data sets interleaved by their weights. `sequential`: one after the other."""
    seed: int = 42
    """Of the shuffles and the interleaving."""
    epoch: int = Field(default=0, ge=0)
    """Data sets without an order come in another one in each."""
    datasets: list[DatasetSettings] = Field(min_length=1)


def read_mixture(data: str | dict[str, Any], roots: Sequence[Path]) -> MixtureSettings:
    """The mixture that a user names: a YAML file's, or what stands below its key `data`; or the settings themselves.

    {file: mix.yaml, epoch: 3} is the file's mixture with another epoch. Raises OperatorError.
    """
    given = {"file": data} if isinstance(data, str) else dict(data)
    if (file := given.pop("file", None)) is None:
        return parse_settings(MixtureSettings, given, "data")
    path = resolve(Path(str(file)), roots)
    return parse_settings(MixtureSettings, {**_read_yaml(path), **given}, str(path))


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
