"""RolloutStore: rollouts out. Every (task, repeat) at most once, failures beside it, and one identity for all of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import orjson

from rollyard.services.config.server_code.code_history import accepted, changes, mark_of, version_of
from rollyard.services.errors import FailureKind, OperatorError, RunError
from rollyard.services.io.jsonl import replace
from rollyard.services.io.locked_files import unused
from rollyard.services.rollout_types import RolloutRow
from rollyard.services.rollouts.appender import MEND, JsonLines
from rollyard.services.rollouts.manifest import check_not_shared, continued, encoded, new_manifest
from rollyard.services.rollouts.manifest_records import Manifest
from rollyard.services.rollouts.rewards import EXPECTED, is_reward
from rollyard.services.rollouts.rollout_keys import Expected, Key, KeySet, duplicate_key, key_of
from rollyard.services.types import CollectionStatus, FailureRow, Json, ServerCode


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

    def beside_output(self) -> tuple[Path, ...]:
        """All of them but the output."""
        return (self.manifest, self.failures, self.status, self.materialized)


class RolloutStore:
    """The files of one collection, open for its only writer."""

    def __init__(
        self,
        paths: StorePaths,
        identity: Json,
        versions: Json,
        *,
        resume: bool,
        overwrite: bool,
        code: Mapping[str, ServerCode] | None = None,
        accept_changed_code: bool = False,
    ) -> None:
        """`code`: of the servers that the rows reach. Raises OperatorError, RunError."""
        self.paths = paths
        self.notes: list[str] = []
        self.done = KeySet()
        self.permanently_failed = KeySet()
        """Rollouts whose row the world refuses: never tried again."""
        self.attempts: dict[Key, int] = {}
        """Failed attempts so far of rollouts not done."""
        try:
            paths.output.parent.mkdir(parents=True, exist_ok=True)
            self._rows = JsonLines(paths.output)
        except OSError as error:
            raise OperatorError(f"output {str(paths.output)!r} cannot be written: {error.strerror}") from error
        try:
            check_not_shared(paths.output, paths.manifest, paths.beside_output())
            if overwrite:
                self._move_aside()
            self.code = dict(code or {})
            """Of the servers that the rows reach, as they run it now."""
            self.code_changes = 0
            """How often they were reloaded with other code since."""
            self._writing_manifest = threading.Lock()
            manifest = self._manifest(identity, versions, self.code, resume, accept_changed_code)
            # Locked before the manifest is written: an output that shares it has locked the same file.
            self._failures = self._open_failures()
            self._current = manifest
            self._encoded = encoded(manifest)
            if not paths.manifest.exists() or paths.manifest.read_bytes() != self._encoded:
                replace(paths.manifest, self._encoded)
            self.code_mark = mark_of(manifest.code, version_of(self.code, 0.0))
            """`_ng_code` of the rows that this command collects; empty for the first version of the code."""
            for lines in (self._rows, self._failures):
                if lines.set_aside:
                    self.notes.append(f"{lines.path} ended in a torn line; it was moved to {lines.set_aside}")
            if len(manifest.code) > 1:
                self.notes += [f"code changed: {line}" for line in changes(*manifest.code[-2:])]
                self.notes.append(
                    f"{paths.output} holds rollouts of {len(manifest.code)} versions of the servers' code; _ng_code of "
                    f"a row says which ({paths.manifest.name} lists them)"
                )
        except BaseException:
            self._rows.close()
            raise

    def load(self, seen: Callable[[RolloutRow], None] | None = None, expected: Expected | None = None) -> None:
        """Read what is there: which rollouts are done, which are hopeless. `seen(row)` is called for each done one.

        Raises RunError naming a line that is not one of the `expected` rollouts, each once, with a finite reward.
        """
        for number, _, line, row in self._rows.rows():
            if twice := duplicate_key(line):
                raise RunError(f"{self.paths.output}: line {number} has {twice} twice. {MEND}")
            key = _checked_key(row, self.paths.output, number, expected)
            if not is_reward(row.get("reward")):
                said = f"reward {row.get('reward')!r:.40}; {EXPECTED}"
                raise RunError(f"{self.paths.output}: line {number} has {said}. {MEND}")
            if not self.done.add(key):
                raise RunError(
                    f"{self.paths.output}: line {number} repeats task {key[0]}, repeat {key[1]}. Delete one of the two "
                    "lines, or start over with +overwrite=true."
                )
            if seen is not None:
                seen(cast(RolloutRow, row))
        for number, _, _, row in self._failures.rows():
            key = _checked_key(row, self.paths.failures, number, expected)
            self.attempts[key] = self.attempts.get(key, 0) + 1
            if row.get("failure_kind") == FailureKind.BAD_TASK:
                self.permanently_failed.add(key)

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
            self.permanently_failed.add(key)

    def write_status(self, status: CollectionStatus) -> None:
        """Replace `X_status.json`. Progress is worth no crash: a full disk is met at the next row."""
        try:
            replace(self.paths.status, orjson.dumps(status.model_dump(), option=orjson.OPT_INDENT_2), synced=False)
        except RunError:
            return

    def sync(self) -> None:
        """Make everything survive a power cut."""
        self._rows.sync()
        self._failures.sync()

    def check(self) -> None:
        """Raises RunError when another program moved, removed, replaced, cut or wrote to one of the files."""
        self._checked(JsonLines.check)

    def verify(self) -> None:
        """`check`, and that every line is as it was read or written. Reads the files."""
        self._checked(JsonLines.verify)

    def close(self) -> None:
        """Sync, and let the next writer in."""
        self.sync()
        self._rows.close()
        self._failures.close()

    def _checked(self, look: Callable[[JsonLines], None]) -> None:
        found = []
        for lines in (self._rows, self._failures):
            try:
                look(lines)
            except RunError as error:
                found.append(str(error))
        found += self._manifest_changed()
        if found:
            raise RunError("; ".join(found))

    def take_code(self, code: Mapping[str, ServerCode]) -> None:
        """The servers run this code from now on: record it, and mark the rows that are appended from now on.

        Rollouts in flight may have met both versions and are not to be appended.
        """
        now = version_of(code, time.time())
        versions = accepted(self._current.code, now, self.paths.output, accept=True)
        self._current = self._current.model_copy(update={"code": versions})
        self.code = dict(code)
        self.code_mark = mark_of(versions, now)
        self.code_changes += 1
        with self._writing_manifest:
            if (text := encoded(self._current)) != self._encoded:
                replace(self.paths.manifest, text)
                self._encoded = text

    def _manifest_changed(self) -> list[str]:
        path = self.paths.manifest
        with self._writing_manifest:
            try:
                now = path.read_bytes()
            except OSError:
                now = b""
            if now == self._encoded or not path.parent.exists():
                return []  # a folder that was moved has been told of the output
        there = unused(path.with_name(f"{path.stem}_recovered.json")) if path.exists() else path
        try:
            replace(there, self._encoded)
        except RunError as error:
            return [str(error)]
        if there == path:
            return [
                f"{path} was removed while the collection was running; it was written again. The same command goes on"
            ]
        return [
            f"{path} was changed by another program while the collection was running; {there} is what it was. "
            f"Rename it to {path.name}, then the same command goes on"
        ]

    def _move_aside(self) -> None:
        """The output is locked all the time, and goes last: with some of its files gone it is not resumed."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for path in (*self.paths.beside_output(), self.paths.output):
            if not os.path.lexists(path) or (path == self.paths.output and not path.stat().st_size):
                continue
            if not path.stat().st_size:
                path.unlink()
                continue
            aside = unused(path.with_name(f"{path.name}.{stamp}"))
            if path == self.paths.output:
                self._rows.restart(aside)
            else:
                path.rename(aside)
            self.notes.append(f"{path.name} was moved aside ({aside.name})")

    def _manifest(
        self, identity: Json, versions: Json, code: dict[str, ServerCode], resume: bool, accept_changed_code: bool
    ) -> Manifest:
        """The manifest of a new collection, or the old one's when this command may go on. Raises OperatorError."""
        output, failures = self.paths.output, self.paths.failures
        failed_before = failures.exists() and failures.stat().st_size > 0
        begun = output.stat().st_size > 0 or (self.paths.manifest.exists() and failed_before)
        if begun and not resume:
            raise OperatorError(f"{output} exists: +resume=true goes on with it, +overwrite=true moves it aside")
        if begun:
            return continued(self.paths.manifest, output, identity, code, accept_changed_code=accept_changed_code)
        if failed_before:
            stale = unused(failures.with_name(f"{failures.name}.stale"))
            failures.rename(stale)
            self.notes.append(f"failures of an older collection were moved to {stale.name}")
        return new_manifest(output, identity, versions, code)

    def _open_failures(self) -> JsonLines:
        try:
            return JsonLines(self.paths.failures)
        except OSError as error:
            raise OperatorError(f"{self.paths.failures} cannot be written: {error.strerror}") from error


def _checked_key(row: Json, path: Path, number: int, expected: Expected | None) -> Key:
    try:
        return key_of(row, expected)
    except ValueError as error:
        raise RunError(f"{path}: line {number} {error}. {MEND}") from error
