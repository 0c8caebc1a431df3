"""A rollout file and the files beside it: their names, and a reader by row, as an Arrow table or a pandas DataFrame."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import ValidationError

from rollyard.records.data_files import is_plain, lines_of
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.expression_parser import ExpressionError, parse_field
from rollyard.records.jsonl import iter_jsonl, refuse_unless_torn, remove_unfinished, with_offsets
from rollyard.records.locked_files import unfinished
from rollyard.records.optional import load
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.tokens import reader_of
from rollyard.records.types import CollectionStatus


def real_file(path: Path) -> Path:
    """Return the file that a link refers to, and any other path unchanged: two names of a file are one output.

    Raises OperatorError if there can be no such file, as when its name is too long.
    """
    try:
        return path.resolve() if path.is_symlink() else path
    except OSError as error:
        raise OperatorError(f"{str(path)!r} cannot be a file: {error.strerror}; expected another path") from error


@dataclass(frozen=True)
class RolloutPaths:
    output: Path
    """If it is a link when this object is made, the file that it refers to."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", real_file(self.output))  # the class is frozen

    def sidecar(self, suffix: str) -> Path:
        return self.output.with_name(f"{self.output.stem}_{suffix}")

    @property
    def failures(self) -> Path:
        return self.sidecar("failures.jsonl")

    @property
    def manifest(self) -> Path:
        return self.sidecar("manifest.json")

    @property
    def status(self) -> Path:
        return self.sidecar("status.json")

    @property
    def materialized(self) -> Path:
        """File with the request bodies, which is written only if requested."""
        return self.sidecar("materialized_inputs.jsonl")

    @property
    def notes(self) -> Path:
        """File with notes, labels and corrected verdicts. No collection writes it, and none may move it away."""
        return self.sidecar("notes.jsonl")

    @property
    def audit(self) -> Path:
        """File with a line for each note that was written in a viewer, which says who was connected to it."""
        return self.sidecar("audit.jsonl")

    def sidecars(self) -> tuple[Path, ...]:
        """Return the paths of all files that a collection writes except the output."""
        return (self.manifest, self.failures, self.status, self.materialized)

    def remove_unfinished(self) -> None:
        """Remove what a killed collection left of files that it was replacing. No other process may write them now."""
        unfinished(self.output).unlink(missing_ok=True)
        for path in (self.manifest, self.status):
            remove_unfinished(path)


class Rollouts:
    """The rows of a file in the order in which they were stored. Each iteration reads the file from the start."""

    def __init__(self, path: Path) -> None:
        """Raises RunError if `path` is not a file."""
        if path.is_dir():
            raise RunError(f"{path} is a folder; expected a rollout file, such as the output of ng_collect_rollouts")
        if not path.is_file():
            raise RunError(f"{path} does not exist; expected a rollout file, such as the output of ng_collect_rollouts")
        self.path = path

    def __repr__(self) -> str:
        return f"Rollouts({str(self.path)!r})"

    def __iter__(self) -> Iterator[RolloutRow]:
        """Yield the rows. Raises RunError as `with_offsets` does."""
        return (row for _, row in self.with_offsets())

    def with_offsets(self) -> Iterator[tuple[int, RolloutRow]]:
        """Yield each row with its byte offset, in the decompressed data if the file is compressed.

        Raises RunError if a line is not a JSON object, unless it is the last line and is still being written.
        """
        for line in iter_jsonl(with_offsets(lines_of(self.path)), refuse_unless_torn(self.path)):
            yield line.offset, cast(RolloutRow, line.value)

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Return a `pyarrow.Table` of these columns (default: all). Raises OperatorError if pyarrow is not installed.

        Objects, lists, and columns with values of several types become JSON text, because the items of a conversation
        do not fit Arrow's types.
        """
        arrow = load("pyarrow", "hub", "to_arrow")
        return arrow.table({name: arrow.array(_uniform(values)) for name, values in self._columns(columns).items()})

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Return a `pandas.DataFrame`; objects and lists stay unchanged. Raises OperatorError if pandas is missing.

        `columns`: keys of the rows, or fields as in an expression, such as `response.usage.output_tokens`.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise OperatorError("to_pandas requires the package pandas: pip install pandas") from error
        return pandas.DataFrame(self._columns(columns))

    def _columns(self, names: Sequence[str] | None) -> dict[str, list[Any]]:
        """Return the columns `names`, or a column for every key if `names` is None. Missing values are None.

        A name that is not a key of the row is a field as in an expression, such as `response.usage.output_tokens`.
        """
        if isinstance(names, str):
            raise OperatorError(f"columns is {names!r}; expected a list of names, such as [{names!r}]")
        columns: dict[str, list[Any]] = {name: [] for name in names or ()}
        readers = {name: reader for name in columns if (reader := _reader_of(name)) is not None}
        for count, row in enumerate(self):
            for name in row if names is None else ():
                if name not in columns:
                    columns[name] = [None] * count
            for name, values in columns.items():
                reader = readers.get(name)
                values.append(row.get(name) if reader is None or name in row else reader(row))
        return columns


def _reader_of(name: str) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return a function that reads the field from a row; None if `name` can only be a key."""
    try:
        return reader_of(parse_field(name))
    except ExpressionError:
        return None


def _uniform(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if (len(kinds) <= 1 and not kinds & {dict, list}) or kinds == {int, float}:
        return values
    return [value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values]


def named_files(paths: Sequence[Path], names: Sequence[str]) -> list[tuple[str, Path]]:
    """Return the name and path of each file. Names default to the shortest distinct path endings.

    Raises OperatorError if a file is not a rollout file or is listed twice, or if the names do not match the files.
    """
    if not paths:
        raise OperatorError("no rollout file given; expected, for example, results/rollouts.jsonl")
    for path in paths:
        if not path.is_file():
            raise OperatorError(f"{str(path)!r} is not a file; expected the output of ng_collect_rollouts")
        if not _is_plain(path):
            raise OperatorError(
                f"{str(path)!r} is compressed or a table; expected JSON Lines, as written by ng_collect_rollouts. "
                "Decompress or convert it first"
            )
    if len({path.resolve() for path in paths}) < len(paths):
        raise OperatorError(f"a file is listed more than once: {', '.join(map(str, paths))}")
    if names and len(names) != len(paths):
        raise OperatorError(f"{len(names)} names for {len(paths)} files; expected one name per file")
    if len(set(names)) < len(names):
        raise OperatorError(f"the names {list(names)} are not unique; expected a different name for each file")
    return list(zip(names or _distinct_endings(paths), paths, strict=True))


def _is_plain(path: Path) -> bool:
    try:
        return is_plain(path)
    except OSError as error:
        raise OperatorError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _distinct_endings(paths: Sequence[Path]) -> list[str]:
    all_parts = [path.absolute().with_suffix("").parts for path in paths]
    for length in range(1, max(map(len, all_parts)) + 1):
        names = ["/".join(parts[-length:]) for parts in all_parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]  # x.json and x.jsonl


def check_output(path: Path, read: Iterable[Path] = ()) -> None:
    """Create the folder of an output file. Raises OperatorError if writing would overwrite an input or rollouts."""
    if path.is_dir():
        raise OperatorError(f"{path} is a folder; expected a file to write")
    if path.exists() and path.suffix == ".jsonl" and RolloutPaths(path).manifest.exists():
        raise OperatorError(
            f"{path} contains the rollouts of a collection and would be overwritten; choose a different output"
        )
    if path.resolve() in {file.resolve() for file in read}:
        raise OperatorError(f"{path} is an input file and would be overwritten; choose a different output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"cannot create the parent folder of {path}: {error.strerror}") from error


def read_status(output: Path) -> CollectionStatus | None:
    """Return the status of the collection that writes `output`, or None if it is absent or unreadable."""
    try:
        return CollectionStatus.model_validate_json(RolloutPaths(output).status.read_bytes())
    except (OSError, ValidationError):
        return None


def is_running(status: CollectionStatus | None, silent_s: float) -> bool:
    """Return whether the collection is running. If it was killed, its status is older than `silent_s` seconds."""
    return status is not None and status.state == "running" and time.time() - status.updated < silent_s
