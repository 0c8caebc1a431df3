"""RolloutStore: rollouts out. Every (task, repeat) at most once, failures beside it, and one identity for all of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from services.errors import FailureKind, OperatorError, RunError
from services.jsonl import JsonLines, replace, unused
from services.types import CollectionStatus, FailureRow, Json, Manifest

Key = tuple[int, int]
"""(task index, rollout index)."""


@dataclass(frozen=True)
class StorePaths:
    """The files of one collection, all beside its output."""

    output: Path

    def beside(self, suffix: str) -> Path:
        """`X_suffix` for an output `X.jsonl`."""
        return self.output.with_name(f"{self.output.stem}_{suffix}")

    @property
    def failures(self) -> Path:
        """One row per failed attempt."""
        return self.beside("failures.jsonl")

    @property
    def manifest(self) -> Path:
        """Identity of the collection."""
        return self.beside("manifest.json")

    @property
    def status(self) -> Path:
        """Live progress."""
        return self.beside("status.json")

    @property
    def materialized(self) -> Path:
        """The request bodies, on demand."""
        return self.beside("materialized_inputs.jsonl")

    def all(self) -> tuple[Path, ...]:
        """Everything that `+overwrite=true` moves aside."""
        return (self.output, self.failures, self.manifest, self.status, self.materialized)


class Keys2D:
    """A set of (task, repeat) that costs a few bytes a task: one integer's bits are the repeats."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._count = 0

    def add(self, key: Key) -> bool:
        """False when it was in already."""
        bits = self._bits.get(key[0], 0)
        if bits >> key[1] & 1:
            return False
        self._bits[key[0]] = bits | 1 << key[1]
        self._count += 1
        return True

    def __contains__(self, key: Key) -> bool:
        return bool(self._bits.get(key[0], 0) >> key[1] & 1)

    def __len__(self) -> int:
        return self._count


class RolloutStore:
    """The files of one collection, open for its only writer."""

    def __init__(self, paths: StorePaths, identity: Json, versions: Json, *, resume: bool, overwrite: bool) -> None:
        self.paths = paths
        self.notes: list[str] = []
        self.done = Keys2D()
        self.hopeless = Keys2D()
        """Rollouts whose row the world refuses: never tried again."""
        self.attempts: dict[Key, int] = {}
        """Failed attempts so far of rollouts not done."""
        try:
            paths.output.parent.mkdir(parents=True, exist_ok=True)
            self._rows = JsonLines(paths.output)
        except OSError as error:
            raise OperatorError(f"output {str(paths.output)!r} cannot be written: {error.strerror}") from error
        try:
            if overwrite:
                self._move_aside()
            self._identify(identity, versions, resume=resume)
            self._failures = JsonLines(paths.failures)
            for lines in (self._rows, self._failures):
                if lines.set_aside:
                    self.notes.append(f"{lines.path} ended in a torn line; it was moved to {lines.set_aside}")
        except BaseException:
            self._rows.close()
            raise

    def load(self, seen: Any = None) -> None:
        """Read what is there: which rollouts are done, which are hopeless. `seen(row)` is called for each done one."""
        for number, row in enumerate(self._rows.rows(), 1):
            key = _key(row, self.paths.output, number)
            if not self.done.add(key):
                raise RunError(
                    f"{self.paths.output}: line {number} repeats task {key[0]}, repeat {key[1]}. Take one of the two "
                    "out by hand, or start anew with +overwrite=true."
                )
            if seen is not None:
                seen(row)
        for number, row in enumerate(self._failures.rows(), 1):
            key = _key(row, self.paths.failures, number)
            self.attempts[key] = self.attempts.get(key, 0) + 1
            if row.get("failure_kind") == FailureKind.BAD_TASK:
                self.hopeless.add(key)

    def append(self, key: Key, row: bytes) -> None:
        """One finished rollout. Raises RunError when the disk does not take it."""
        if not self.done.add(key):
            raise RunError(f"task {key[0]}, repeat {key[1]} is in {self.paths.output} already")
        self._rows.append(row)
        self.attempts.pop(key, None)

    def append_failure(self, failure: FailureRow) -> None:
        """One failed attempt."""
        key = (failure.task_index, failure.rollout_index)
        self._failures.append(orjson.dumps(failure.model_dump(by_alias=True)))
        self.attempts[key] = self.attempts.get(key, 0) + 1
        if failure.failure_kind == FailureKind.BAD_TASK:
            self.hopeless.add(key)

    def write_status(self, status: CollectionStatus) -> None:
        """Replace `X_status.json`. Progress is worth no crash: a full disk is met at the next row."""
        try:
            replace(self.paths.status, orjson.dumps(status.model_dump(), option=orjson.OPT_INDENT_2))
        except RunError:
            return

    def sync(self) -> None:
        """Make everything survive a power cut."""
        self._rows.sync()
        self._failures.sync()

    def close(self) -> None:
        """Sync, and let the next writer in."""
        self.sync()
        self._rows.close()
        self._failures.close()

    def _move_aside(self) -> None:
        """The lock is on the old output until the new one is locked: no second writer slips in between."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        old = self._rows
        for path in self.paths.all():
            if path.exists() and path.stat().st_size:
                aside = unused(path.with_name(f"{path.name}.{stamp}"))
                path.rename(aside)
                self.notes.append(f"{path.name} was moved aside ({aside.name})")
            else:
                path.unlink(missing_ok=True)
        self._rows = JsonLines(self.paths.output)
        old.close()

    def _identify(self, identity: Json, versions: Json, *, resume: bool) -> None:
        """Write the manifest of a new collection, or check that this is the old one's. Raises OperatorError."""
        failed_before = self.paths.failures.exists() and self.paths.failures.stat().st_size > 0
        begun = self.paths.output.stat().st_size > 0 or (self.paths.manifest.exists() and failed_before)
        if not begun:
            if failed_before:
                stale = unused(self.paths.failures.with_name(f"{self.paths.failures.name}.stale"))
                self.paths.failures.rename(stale)
                self.notes.append(f"failures of an older collection were moved to {stale.name}")
            manifest = Manifest(identity=identity, versions=versions, created=time.time())
            replace(self.paths.manifest, orjson.dumps(manifest.model_dump(), option=orjson.OPT_INDENT_2))
            return
        if not resume:
            raise OperatorError(
                f"{self.paths.output} exists: +resume=true goes on with it, +overwrite=true moves it aside"
            )
        try:
            manifest = Manifest.model_validate_json(self.paths.manifest.read_bytes())
        except (OSError, ValidationError) as error:
            raise OperatorError(
                f"{self.paths.output} exists, but {self.paths.manifest.name} does not say what it is "
                f"({type(error).__name__}): choose another output, or +overwrite=true to move it aside"
            ) from error
        if differences := _differences(manifest.identity, identity):
            listed = "\n".join(f"  {line}" for line in differences)
            raise OperatorError(
                f"{self.paths.output} was collected with other parameters:\n{listed}\n"
                "Repeat the command as it was to go on, choose another output, or +overwrite=true to move it aside."
            )


def _key(row: Mapping[str, Any], path: Path, number: int) -> Key:
    task, repeat = row.get("_ng_task_index"), row.get("_ng_rollout_index")
    if not isinstance(task, int) or not isinstance(repeat, int):
        raise RunError(f"{path}: line {number} has no _ng_task_index and _ng_rollout_index")
    return task, repeat


def _differences(old: Json, new: Json, prefix: str = "") -> list[str]:
    lines: list[str] = []
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            lines += _differences(before, now, f"{prefix}{key}.")
        elif before != now:
            lines.append(f"{prefix}{key}: {_shown(before)} in the file, {_shown(now)} now")
    return lines


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)
