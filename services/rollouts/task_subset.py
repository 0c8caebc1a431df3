"""TaskSubset: some tasks of a collection's original input, given in another file, such as remaining_prompts.jsonl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from rollyard.records.data_files import lines_of
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import BadLine, hand_over, iter_jsonl, strict, with_offsets
from rollyard.records.manifest import Manifest
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import digest, task_key
from rollyard.records.types import Json, whole_number
from rollyard.services.datasets.mixture import Rollout, TaskFile
from rollyard.services.rollouts.task_index import KeyAssignment, TaskIndex

INPUT_PATH = "_ng_input_fpath"
INPUT_SHA256 = "_ng_input_sha256"
INPUT_ROWS = "_ng_input_rows"
"""Keys of a row that was copied from an input: the path, the digest and the number of rows of that input."""


class TaskSubset:
    """The tasks of `original` that also occur in `given`. They keep the indexes of the original."""

    def __init__(self, given: TaskFile, original: TaskFile) -> None:
        """Raises ValueError, with a readable message, if a row of `given` is not a row of `original`."""
        self.original = original
        self.files = original.files | given.files
        self.count = original.count
        self.digest = original.digest
        self.selected = _selected(given, original)
        self.agents = original.agents

    @property
    def identity(self) -> Json:
        return self.original.identity

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Yield all repeats of the selected tasks. The rows are those of the original input."""
        for rollout in self.original.rollouts(1):
            if rollout.task_index in self.selected:
                for repeat in range(repeats):
                    yield replace(rollout, rollout_index=repeat)


@dataclass(frozen=True)
class Origin:
    sha256: str
    rows: int
    paths: tuple[Path, ...]
    """Where the file may be."""

    @classmethod
    def of_manifest(cls, path: Path) -> Origin | None:
        """Return the origin in a manifest, or None if it cannot be read."""
        try:
            manifest = Manifest.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        sha256, rows = manifest.identity.get("input_sha256"), whole_number(manifest.identity.get("rows"), least=1)
        if not isinstance(sha256, str) or rows is None:
            return None
        return cls(sha256, rows, (Path(manifest.input),) if manifest.input else ())

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Origin | None:
        """Return the origin of a row that `remaining_rows` copied, or None for any other row."""
        path, sha256, rows = row.get(INPUT_PATH), row.get(INPUT_SHA256), whole_number(row.get(INPUT_ROWS), least=1)
        if not isinstance(path, str) or not isinstance(sha256, str) or rows is None or "\0" in path:
            return None
        return cls(sha256, rows, (Path(path),))

    def find(self, agent: str | None, folders: tuple[Path, ...]) -> TaskFile | None:
        """Read the input from one of its paths, or from a file of the same name in `folders`; None if it is gone."""
        beside = [folder / path.name for path in self.paths for folder in folders]
        for path in dict.fromkeys([*self.paths, *beside]):
            if not path.is_file():
                continue
            try:
                found = TaskFile(path, agent=agent, limit=self.rows)
            except OperatorError:
                continue
            if found.digest == self.sha256:
                return found
        return None


def subset_of_original(given: TaskFile, paths: RolloutPaths, agent: str | None) -> tuple[TaskSubset | None, str]:
    """Return `given` as tasks of the input that the output was started with, or None and the reason.

    The reason is empty if `given` is that input, or if it is not known. An output without rows is started with the
    original input if `given` has all of its tasks: remaining_prompts.jsonl of a collection that has measured nothing.
    """
    of_row = Origin.of_row(next(given.rollouts(1)).row)
    if not (paths.output.is_file() and paths.output.stat().st_size):
        original = of_row.find(agent, tuple(file.parent for file in given.files)) if of_row else None
        with suppress(ValueError):
            if original is not None and len((subset := TaskSubset(given, original)).selected) == subset.count:
                return subset, ""
        return None, ""
    origin = Origin.of_manifest(paths.manifest) if paths.manifest.exists() else of_row
    if origin is None or origin.sha256 == given.digest:
        return None, ""
    if of_row is not None and of_row.sha256 == origin.sha256:
        origin = replace(origin, paths=(*origin.paths, *of_row.paths))
    folders = (paths.output.parent, *(file.parent for file in given.files))
    original = origin.find(agent, folders)
    if original is None:
        where = f" ({', '.join(map(str, origin.paths))})" if origin.paths else ""
        return None, (
            f"Whether {given.file} contains rows of the original input is unknown, because that input{where} was not "
            "found or has changed."
        )
    try:
        return TaskSubset(given, original), ""
    except ValueError as error:
        return None, f"{given.file} {error}."


def _selected(given: TaskFile, original: TaskFile) -> frozenset[int]:
    rows: dict[bytes, list[int]] = {}
    tasks: dict[str, int] = {}
    for rollout in original.rollouts(1):
        rows.setdefault(_content(rollout), []).append(rollout.task_index)
        tasks.setdefault(task_key(rollout.row), rollout.task_index)
    selected = set[int]()
    for rollout in given.rollouts(1):
        found = rows.get(_content(rollout))
        if found is None:
            raise ValueError(_foreign(rollout, original, tasks))
        index = whole_number(rollout.row.get("_ng_task_index"))
        # A row without an index stands for all duplicates of its task: each is collected until it has all repeats.
        selected |= {index} if index is not None and index in found else set(found)
    return frozenset(selected)


def _content(rollout: Rollout) -> bytes:
    row = {name: value for name, value in rollout.row.items() if not name.startswith("_ng_")}
    return digest([rollout.agent, row])


def _foreign(rollout: Rollout, original: TaskFile, tasks: Mapping[str, int]) -> str:
    row = f"has a row ({rollout.task_index + 1}) that"
    same_task = tasks.get(task_key(rollout.row))
    if same_task is None:
        return f"{row} is not in the original input {original.file}"
    return (
        f"{row} has the task of row {same_task + 1} of the original input {original.file}, but its agent, ids or "
        "sampling parameters differ"
    )


@dataclass(frozen=True)
class Remaining:
    found: int
    """Number of (task, repeat) pairs in the file."""
    expected: int
    missing: dict[int, int]
    """Task -> number of missing repeats, for the incomplete tasks in input order."""
    skipped: tuple[tuple[int, str], ...]
    """Lines that are not counted, with the reason, to be appended to `line 17`."""


def find_remaining(tasks: TaskFile, rollouts: Path, repeats: int) -> Remaining:
    """Compare a rollout file, which may be missing, with its input. Raises OperatorError if a file cannot be read."""
    index = TaskIndex(tasks)
    assignment = KeyAssignment(index, repeats)
    skipped: list[tuple[int, str]] = []
    numbers: list[int] = []
    source = with_offsets(lines_of(rollouts)) if rollouts.exists() else ()
    for found in iter_jsonl(source, hand_over, parse=strict):
        if not found.line.endswith(b"\n"):  # even if it is valid JSON, the collection sets it aside
            skipped.append((found.number, " is incomplete"))
        elif isinstance(found, BadLine):
            skipped.append((found.number, found.problem))
        elif problem := assignment.add(found.value):
            skipped.append((found.number, f" {problem}"))
        else:
            numbers.append(found.number)
    skipped += [(numbers[position], f" {problem}") for position, problem in assignment.finish().items()]
    done = assignment.done
    missing = {task: left for task in range(len(index)) if (left := repeats - done.repeats_of(task))}
    return Remaining(len(done), len(index) * repeats, missing, tuple(sorted(skipped)))


def remaining_lines(tasks: TaskFile, missing: dict[int, int]) -> Iterator[bytes]:
    """Yield the rows of the incomplete tasks as lines, with their index in the input and the input they are from."""
    origin = {INPUT_PATH: str(Path(tasks.file).absolute()), INPUT_SHA256: tasks.digest, INPUT_ROWS: tasks.count}
    for rollout in tasks.rollouts(1):
        if rollout.task_index in missing:
            row = {name: value for name, value in rollout.row.items() if not name.startswith("_ng_")}
            yield orjson.dumps({**row, "_ng_task_index": rollout.task_index, **origin}) + b"\n"
