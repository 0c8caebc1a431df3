"""RolloutStore: writes the output and sidecar files of a collection.

It stores each (task, repeat) at most once, and adopts what an earlier collection has stored. Failures, the manifest and
the status are in the sidecar files.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from rollyard.records.activity import PARTIAL_MEMBER
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.jsonl import Lines, ParsedLine, iter_jsonl, refuse, replace, skip, strict
from rollyard.records.locked_files import open_locked, outside_change, replace_locked, unused, write_synced
from rollyard.records.manifest import (
    Adoption,
    Manifest,
    check_not_shared,
    code_mark,
    encode_manifest,
    new_manifest,
    resumed_manifest,
)
from rollyard.records.rewards import EXPECTED, is_reward
from rollyard.records.rollout_file import RolloutPaths, read_status
from rollyard.records.rollout_keys import Expected, Key, KeySet, duplicate_key, key_of
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rows import with_seed
from rollyard.records.run_types import CodeVersion, ServerCode
from rollyard.records.terminal import plain_line
from rollyard.records.types import CollectionStatus, FailureRow, Json, is_number, mapping, text_of
from rollyard.services.datasets.mixture import DatasetTasks, Rollout
from rollyard.services.rollouts.task_index import KeyAssignment, TaskIndex, sampling_params

_CHUNK = 1 << 20
REPAIR_HINT = "Delete that line, or start over with --overwrite, which moves the old files aside."


class JsonLines:
    """An append-only file with one writer. After a crash, only the last line can be incomplete.

    `check` and `verify` detect changes by other programs while the file is open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = open_locked(path)
        self._file = os.fstat(self._fd)
        try:
            self.tail_file = self._move_incomplete_tail()
        except OSError as error:
            os.close(self._fd)
            raise RunError(
                f"{path} ends in an incomplete line, which cannot be moved aside: {error.strerror}"
            ) from error
        self._size = os.fstat(self._fd).st_size
        self._line_hashes = array("q")
        """A hash of each line that was read or written, 8 bytes per line."""
        self._all_hashed = self._size == 0

    def append(self, line: bytes) -> None:
        """Append one line (passed without `\\n`). If the write fails, leaves the file unchanged and raises RunError."""
        if os.fstat(self._fd).st_size != self._size:
            self.check()
        data = line + b"\n"
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            if os.fstat(self._fd).st_size > self._size:
                os.ftruncate(self._fd, self._size)
            raise RunError(
                f"cannot write {self.path}: {error.strerror}. The lines already in it are complete."
            ) from error
        self._size += len(data)
        self._line_hashes.append(hash(data))

    def rows(self) -> Iterator[ParsedLine]:
        """Yield every line that is not blank. Raises RunError if one is not a JSON object, or if the file was moved."""
        self._line_hashes, self._all_hashed = array("q"), True
        return iter_jsonl(self._hashed_lines(), refuse(self.path, REPAIR_HINT), parse=strict)

    def check(self) -> None:
        """Raise RunError if `path` no longer refers to the open file, or if the file's size has changed."""
        try:
            problem = outside_change(self._fd, self.path, self._size)
        except OSError as error:
            problem = f"{self.path} can no longer be accessed: {error.strerror}"
        if problem:
            raise RunError(problem)

    def is_in_place(self) -> bool:
        """Return whether `path` refers to the file that was opened."""
        try:
            return os.path.samestat(self._file, self.path.stat())
        except OSError:
            return False

    def verify(self) -> None:
        """Run `check`, then compare every line with its hash, if all lines were written here or read with `rows`."""
        self.check()
        if not self._all_hashed:
            return
        with self.path.open("rb") as file:
            for number, (line, line_hash) in enumerate(zip(file, self._line_hashes, strict=False), 1):
                if hash(line) != line_hash:
                    raise RunError(
                        f"{self.path}: line {number} was changed by another program while the file was being written. "
                        "Restore or delete that line, then repeat the command to continue"
                    )

    def sync(self) -> None:
        os.fsync(self._fd)

    def restart(self, aside: Path, lines: Iterable[bytes] = ()) -> None:
        """Rename the file to `aside` and continue with one that holds `lines`, keeping the lock. Raises RunError."""
        try:
            fd = replace_locked(self.path, aside, lines)
        except OSError as error:
            raise RunError(f"{self.path} cannot be replaced: {error.strerror}") from error
        os.close(self._fd)
        self._fd, self._file, self._line_hashes = fd, os.fstat(fd), array("q")
        self._size = self._file.st_size
        self._all_hashed = self._size == 0

    def close(self) -> None:
        os.close(self._fd)

    def _hashed_lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            for offset, line in Lines(self.path):
                self._line_hashes.append(hash(line))
                yield offset, line
        except FileNotFoundError:
            self.check()  # says where it is now
            raise

    def _move_incomplete_tail(self) -> Path | None:
        """Move the bytes after the last `\\n` to a new file and return its path, or None if there are none."""
        size = os.fstat(self._fd).st_size
        end, tail = size, b""
        while end > 0:
            start = max(0, end - _CHUNK)
            chunk = os.pread(self._fd, end - start, start)
            newline = chunk.rfind(b"\n")
            if newline >= 0:
                tail, end = chunk[newline + 1 :] + tail, start + newline + 1
                break
            tail, end = chunk + tail, start
        if not tail:
            return None
        aside = unused(self.path.with_name(f"{self.path.stem}_torn{self.path.suffix}"))
        write_synced(aside, tail)
        os.ftruncate(self._fd, end)
        return aside


_MAX_DETAIL = 300
_VARYING = re.compile(r"[0-9a-f]{8,}|\d+", re.IGNORECASE)
"""Ids and numbers, in which failures of one cause differ."""
IsFinal = Callable[[str, str], bool]
"""Whether a failure of this kind, which originated at this server, is final."""


def is_bad_task(kind: str, server: str) -> bool:
    """The usual rule: the environment rejects the row."""
    return kind == FailureKind.BAD_TASK


class RolloutStore:
    def __init__(
        self,
        paths: RolloutPaths,
        identity: Json,
        versions: Json,
        *,
        resume: bool,
        overwrite: bool,
        code: Mapping[str, ServerCode] | None = None,
        accept_changed_code: bool = False,
        input_path: str = "",
        adopter: Adopter | None = None,
        origin: Manifest | None = None,
        is_final: IsFinal = is_bad_task,
    ) -> None:
        """`code`: the code of every server that the rows use. `adopter`: adopts rollouts that have no manifest.
        `origin`: the manifest of a new output that continues other files.

        Raises OperatorError or RunError if the files cannot be written, or if the collection cannot be resumed.
        """
        self.paths = paths
        self._syncing = threading.Lock()
        self._closed = False
        self.notes: list[str] = []
        self.done = KeySet()
        self.permanently_failed = KeySet()
        """Rollouts with a final failure, which are never retried."""
        self.is_final = is_final
        self.attempts: dict[Key, int] = {}
        """Rollout -> number of its failed attempts, for rollouts that are not done."""
        try:
            paths.output.parent.mkdir(parents=True, exist_ok=True)
            self._rows = JsonLines(paths.output)
        except OSError as error:
            raise OperatorError(f"output {str(paths.output)!r} cannot be written: {error.strerror}") from error
        opened = [self._rows]
        try:
            check_not_shared(paths.output, paths.manifest, paths.sidecars())
            paths.remove_unfinished()
            if overwrite:
                self._move_aside()
            self.code = dict(code or {})
            """Code of the servers that the rows use."""
            manifest = self._manifest(identity, versions, resume, accept_changed_code, input_path, adopter, origin)
            # Locked before the manifest is written: an output with the same manifest locks the same failures file.
            self._failures = self._open_failures()
            opened.append(self._failures)
            self._encoded = encode_manifest(manifest)
            if not paths.manifest.exists() or paths.manifest.read_bytes() != self._encoded:
                replace(paths.manifest, self._encoded)
            self.code_mark = code_mark(manifest.code, CodeVersion.of(self.code, 0.0))
            """Value of `_ng_code` in new rows; empty for the first version of the code."""
            for lines in (self._rows, self._failures):
                if lines.tail_file:
                    self.notes.append(
                        f"the last line of {lines.path} was incomplete; it was moved to {lines.tail_file}"
                    )
            if len(manifest.code) > 1:
                before, last = manifest.code[-2:]
                self.notes += [f"code changed: {line}" for line in before.changes_to(last)]
                self.notes.append(
                    f"{paths.output} contains rollouts of {len(manifest.code)} versions of the servers' code; _ng_code "
                    f"identifies a row's version ({paths.manifest.name} lists them)"
                )
        except BaseException:
            for lines in opened:
                lines.close()
            raise

    def load(self, on_row: Callable[[RolloutRow], None] | None = None, expected: Expected | None = None) -> None:
        """Read which rollouts are done or have permanently failed. Raises RunError like `valid_rows`."""
        for key, line in valid_rows(self._rows.rows(), self.paths.output, expected):
            self.done.add(key)
            if on_row is not None:
                on_row(cast(RolloutRow, line.value))
        for key, line in valid_failures(self._failures.rows(), self.paths.failures, expected):
            self.attempts[key] = self.attempts.get(key, 0) + 1
            if self.is_final(str(line.value.get("failure_kind")), str(line.value.get("server"))):
                self.permanently_failed.add(key)

    def append(self, key: Key, row: bytes) -> None:
        """Write one finished rollout. Raises RunError if it cannot be written; the rollout is then not done."""
        if key in self.done:
            raise RunError(f"task {key[0]}, repeat {key[1]} is already in {self.paths.output}")
        self._rows.append(row)
        self.done.add(key)
        self.attempts.pop(key, None)

    def append_failure(self, failure: FailureRow, partial: Json | None = None) -> None:
        key = (failure.task_index, failure.rollout_index)
        known = {} if partial is None else {PARTIAL_MEMBER: partial}
        self._failures.append(orjson.dumps({**failure.model_dump(by_alias=True), **known}))
        self.attempts[key] = self.attempts.get(key, 0) + 1
        if self.is_final(failure.failure_kind, failure.server):
            self.permanently_failed.add(key)

    def write_status(self, status: CollectionStatus) -> None:
        """Replace `X_status.json`, unless the output was moved, and may be another collection by now, or a command that
        began later has written it, which it can only once this store is closed.

        Errors are ignored: a full disk is reported when the next row is written.
        """
        found = read_status(self.paths.output) if self._closed else None
        is_old = found is not None and found.pid != status.pid and found.started > status.started
        if is_old or not self._rows.is_in_place():
            return
        try:
            replace(self.paths.status, orjson.dumps(status.model_dump(), option=orjson.OPT_INDENT_2), synced=False)
        except RunError:
            return

    def sync(self) -> None:
        """Flush all files to disk (fsync). Any thread may call it."""
        with self._syncing:
            if not self._closed:
                self._rows.sync()
                self._failures.sync()

    def check(self) -> None:
        """Raise RunError if another program moved, removed, replaced, truncated or wrote to one of the files."""
        self._check_files(JsonLines.check)

    def verify(self) -> None:
        """Run `check`, then read the files and verify that no line has changed."""
        self._check_files(JsonLines.verify)

    def close(self) -> None:
        """Sync and close the files, and release their locks. Raises RunError if they cannot be synced."""
        # A cancelled collection may leave a thread in `sync`: the files stay locked until that thread has left it.
        with self._syncing:
            if self._closed:
                return
            self._closed = True
            try:
                self._rows.sync()
                self._failures.sync()
            except OSError as error:
                raise RunError(
                    f"{self.paths.output} may be incomplete on the disk: {error.strerror}. Repeat the command to check "
                    "it and to collect what is missing"
                ) from error
            finally:
                self._rows.close()
                self._failures.close()

    def _check_files(self, check: Callable[[JsonLines], None]) -> None:
        found = []
        for lines in (self._rows, self._failures):
            try:
                check(lines)
            except RunError as error:
                found.append(str(error))
        found += self._manifest_changed()
        if found:
            raise RunError("; ".join(found))

    def _manifest_changed(self) -> list[str]:
        path = self.paths.manifest
        try:
            now = path.read_bytes()
        except OSError:
            now = b""
        if now == self._encoded or not path.parent.exists():
            return []  # the folder was moved, which `JsonLines.check` reports
        target = unused(path.with_name(f"{path.stem}_recovered.json")) if path.exists() else path
        try:
            replace(target, self._encoded)
        except RunError as error:
            return [str(error)]
        if target == path:
            return [
                f"{path} was removed while the collection was running and was restored. Repeat the command to continue"
            ]
        return [
            f"{path} was changed by another program while the collection was running; {target} has its original "
            f"contents. Rename it to {path.name}, then repeat the command to continue"
        ]

    def _move_aside(self) -> None:
        """Rename the old files, the locked output last, so that an interruption leaves nothing that can be resumed."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for path in (*self.paths.sidecars(), self.paths.output):
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
            self.notes.append(f"{path.name} was renamed to {aside.name}")

    def _manifest(
        self,
        identity: Json,
        versions: Json,
        resume: bool,
        accept_changed_code: bool,
        input_path: str,
        adopter: Adopter | None,
        origin: Manifest | None,
    ) -> Manifest:
        """Return a new manifest, or the one of the collection to resume. Raises OperatorError if it cannot resume."""
        output, failures = self.paths.output, self.paths.failures

        def set_failures_aside() -> None:
            if failed_before:
                stale = unused(failures.with_name(f"{failures.name}.stale"))
                failures.rename(stale)
                self.notes.append(f"failures of an older collection were moved to {stale.name}")

        failed_before = failures.exists() and failures.stat().st_size > 0
        started = output.stat().st_size > 0 or (self.paths.manifest.exists() and failed_before)
        if started and not resume:
            raise OperatorError(
                f"{output} exists: continue it with --resume, or rename it and start over with --overwrite"
            )
        adopted = None
        if started and adopter is not None and not os.path.lexists(self.paths.manifest):
            # Before the rows get their keys: after a crash in between, the failures would seem to belong to them.
            adopted = adopter.adopt(self._rows, before_writing=set_failures_aside)
            self.notes.append(adoption_note(self._rows, adopted))
        elif started:
            has_rollouts = output.stat().st_size > 0
            accept = accept_changed_code and has_rollouts
            try:
                return resumed_manifest(
                    self.paths.manifest, output, identity, self.code, accept_changed_code=accept, note=self.notes.append
                )
            except OperatorError:
                if has_rollouts:
                    raise
                # Nothing was measured, so there is nothing that the changed code or command could mix with.
                self.notes.append(f"{output} has no rollouts yet, so it starts over with the current code and command")
        if adopted is None:
            set_failures_aside()
        if origin is not None:
            return origin.model_copy(update={"output": output.name})
        return new_manifest(output, identity, versions, self.code, input_path=input_path, adopted=adopted)

    def _open_failures(self) -> JsonLines:
        try:
            return JsonLines(self.paths.failures)
        except OSError as error:
            raise OperatorError(f"{self.paths.failures} cannot be written: {error.strerror}") from error


def valid_rows(
    lines: Iterable[ParsedLine], path: Path, expected: Expected | None = None
) -> Iterator[tuple[Key, ParsedLine]]:
    """Yield the rollouts of a file with their keys.

    Raises RunError if a row is not one of the `expected` rollouts, repeats another, has a key twice, or lacks a finite
    reward.
    """
    found = KeySet()
    for line in lines:
        if duplicated := duplicate_key(line.line):
            raise RunError(f"{path}: line {line.number} has the key {duplicated} twice. {REPAIR_HINT}")
        key = _validated_key(line.value, path, line.number, expected)
        if not is_reward(line.value.get("reward")):
            problem = f"reward {line.value.get('reward')!r:.40}; {EXPECTED}"
            raise RunError(f"{path}: line {line.number} has {problem}. {REPAIR_HINT}")
        if not found.add(key):
            raise RunError(
                f"{path}: line {line.number} repeats task {key[0]}, repeat {key[1]}. Delete one of the two lines, or "
                "start over with --overwrite."
            )
        yield key, line


def valid_failures(
    lines: Iterable[ParsedLine], path: Path, expected: Expected | None = None
) -> Iterator[tuple[Key, ParsedLine]]:
    """Yield the failed attempts of a file with their keys, as `valid_rows` does."""
    return ((_validated_key(line.value, path, line.number, expected), line) for line in lines)


def _validated_key(row: Json, path: Path, number: int, expected: Expected | None) -> Key:
    try:
        return key_of(row, expected)
    except ValueError as error:
        raise RunError(f"{path}: line {number} {error}. {REPAIR_HINT}") from error


@dataclass
class FailedAttempt:
    """Which attempt failed, how long it took, and what had been said until then."""

    index: int
    seconds: float
    partial: Json | None = None
    """None if it is not known."""


def failure_row(
    rollout: Rollout, failure: Failure, attempt: FailedAttempt, *, terminal: bool, abandoned: bool
) -> FailureRow:
    """Return the row without the partial conversation, which is written next to these keys."""
    problem = failure.problem
    return FailureRow(
        task_index=rollout.task_index,
        rollout_index=rollout.rollout_index,
        attempt_index=attempt.index,
        agent_ref=dict(rollout.agent_ref),
        failure_kind=failure.kind,
        server=problem.server,
        status=problem.status,
        upstream_status=problem.upstream_status,
        detail=problem.detail,
        terminal=terminal,
        abandoned=abandoned,
        time=time.time(),
        duration_s=round(attempt.seconds, 3),
    )


def first_failure(row: FailureRow) -> str:
    where = f"task {row.task_index}, repeat {row.rollout_index}"
    return f"first failure of kind {row.failure_kind} ({where}, {row.server or '?'}): {row.detail}"


def most_frequent_failure(failures: Path, since: float = 0.0) -> str:
    """Return the most frequent failure in `X_failures.jsonl` since a time, in Unix seconds; empty if there is none."""
    counts = Counter[str]()
    examples: dict[str, str] = {}
    try:
        for row in (line.value for line in iter_jsonl(failures, skip)):
            happened = row.get("time", 0.0)
            if not is_number(happened) or happened < since:
                continue
            shown = f"{row.get('failure_kind')} at {row.get('server') or 'an unknown server'}: {row.get('detail')}"
            group = _VARYING.sub("#", shown)
            counts[group] += 1
            examples.setdefault(group, shown)
    except OSError:
        return ""
    if not counts:
        return ""
    group, count = counts.most_common(1)[0]
    shown = plain_line(examples[group])
    shown = shown if len(shown) <= _MAX_DETAIL else f"{shown[:_MAX_DETAIL]} ..."
    return f"{count:,} of {counts.total():,} failed attempts: {shown}"


_API_DEFAULTS = {
    "background": False,
    "parallel_tool_calls": True,
    "store": True,
    "stream": False,
    "tool_choice": "auto",
    "truncation": "disabled",
}
"""Parameters that have the same effect when they are not set; validation by OpenAI's types adds some of them."""


class Adopter:
    def __init__(self, tasks: DatasetTasks, repeats: int, params: Mapping[str, Any], *, seeded: bool) -> None:
        self._tasks = tasks
        self._repeats = repeats
        self._params = dict(params)
        self._seeded = seeded

    def adopt(self, rows: JsonLines, before_writing: Callable[[], None] = lambda: None) -> Adoption:
        """Check the rows, and write the keys that are missing or differ.

        If keys are written, `before_writing` is called first, and the original file is kept beside the new one.
        Raises OperatorError if a row is not a rollout of the tasks with these parameters, RunError if the file cannot
        be read or written.
        """
        index = TaskIndex(self._tasks)
        assignment = KeyAssignment(index, self._repeats)
        lines = array("q")
        """Line number of each row."""
        for found in rows.rows():
            if duplicated := duplicate_key(found.line):
                raise self._refused(rows, found.number, f"has the key {duplicated} twice")
            if problem := assignment.add(found.value):
                raise self._refused(rows, found.number, problem)
            lines.append(found.number)
        for position, problem in assignment.finish().items():
            raise self._refused(rows, lines[position], problem)
        for found, (task, repeat) in zip(rows.rows(), assignment.keys(), strict=True):
            if problem := self._difference(found.value, index, task, repeat):
                raise self._refused(rows, found.number, problem)
        backup = ""
        if assignment.changed:
            aside = unused(rows.path.with_name(f"{rows.path.name}.original"))
            before_writing()
            rows.restart(aside, _with_keys(rows, assignment, index))
            backup = aside.name
        return Adoption(time=time.time(), rollouts=len(lines), new_keys=assignment.changed, original=backup)

    def _difference(self, row: Json, index: TaskIndex, task: int, repeat: int) -> str:
        """Return which setting of a rollout differs from the current command; empty if none does."""
        agent = text_of(mapping(row.get("agent_ref")).get("name"))
        if agent and agent != index.agents[task]:
            return f"was collected by the agent {agent!r}, now {index.agents[task]!r}"
        if not isinstance(row.get("responses_create_params"), dict):
            return ""
        now = {**index.params[task], **self._params}
        if self._seeded:
            now["metadata"] = with_seed(now.get("metadata"), repeat)
        now, then = _effective(now), _effective(sampling_params(row))
        for name in sorted({*now, *then}):
            if now.get(name) != then.get(name):
                return f"was collected with {_shown(name, then)}, now {_shown(name, now)}"
        return ""

    def _refused(self, rows: JsonLines, number: int, problem: str) -> OperatorError:
        return OperatorError(
            f"{rows.path} has no manifest, and its rollouts cannot be adopted: line {number} {problem}. Restore "
            f"{rows.path.stem}_manifest.json, delete that line, choose another output, or rename the old files with "
            "--overwrite"
        )


def adoption_note(rows: JsonLines, adopted: Adoption) -> str:
    keys = "they had their keys" if not adopted.new_keys else (
        f"{adopted.new_keys} got a new _ng_task_index or _ng_rollout_index, and the original file is {adopted.original}"
    )  # fmt: skip
    return (
        f"{rows.path} had no manifest: its {adopted.rollouts} rollouts were checked against the input, the agents and "
        f"the parameters, and adopted; {keys}. Unknown and therefore not checked: the settings, code and model of the "
        "servers that collected them"
    )


def _effective(params: Json) -> Json:
    return {
        name: value
        for name, value in params.items()
        if value not in (None, [], {}) and not (name in _API_DEFAULTS and _API_DEFAULTS[name] == value)
    }


def _shown(name: str, params: Json) -> str:
    return f"{name}={params[name]!r:.60}" if name in params else f"no {name}"


def _with_keys(rows: JsonLines, assignment: KeyAssignment, index: TaskIndex) -> Iterator[bytes]:
    for found, (task, repeat) in zip(rows.rows(), assignment.keys(), strict=True):
        keys: Json = {"_ng_task_index": task, "_ng_rollout_index": repeat, "_ng_task_key": index.keys[task]}
        if all(found.value.get(name) == value for name, value in keys.items()):
            yield found.line
        elif any(name in found.value for name in keys):
            # Python's parser keeps integers of any size.
            yield json.dumps({**json.loads(found.line), **keys}, separators=(",", ":")).encode() + b"\n"
        else:
            # The rest of the line stays as it is, with its numbers and the order of its keys.
            yield found.line.rstrip()[:-1] + b"," + orjson.dumps(keys)[1:] + b"\n"
