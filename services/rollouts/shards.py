"""The files of several jobs that collect one output together, and `merge`, which makes them one.

The job `--shard 2/4` of the output `X.jsonl` writes `X.shard-2-of-4.jsonl`, with the usual files beside it. It collects
the rollouts of its share that no file of the output holds, so that jobs with another n continue where those before have
stopped. A rollout's share is a hash of its key (`Shard` in records/rollout_keys.py); `collection.py` leaves the others
out. The last job to end merges the files there; `ng_merge` does it if that one was killed. Only jobs with the same n
run at the same time. The files of earlier versions in `X_shared` are merged, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import cast

import orjson
from pydantic import ValidationError

from rollyard.records.errors import FailureKind, OperatorError, RunError
from rollyard.records.jsonl import Lines, ParsedLine, iter_jsonl, refuse, replace, strict
from rollyard.records.locked_files import InUse, is_locked, sync_file, sync_folder, unused
from rollyard.records.manifest import (
    ROLLOUTS,
    ChangedParameters,
    Manifest,
    check_not_shared,
    encode_manifest,
    resumed_manifest,
)
from rollyard.records.rollout_file import RolloutPaths, read_status
from rollyard.records.rollout_keys import Expected, Key, KeySet, Shard
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.run_types import ServerCode
from rollyard.records.types import Json, State, differences
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import REPAIR_HINT, JsonLines, valid_failures, valid_rows

_COUNT = re.compile(r"\.shard-\d+-of-(\d+)")


@dataclass(frozen=True)
class Merged:
    """An output that holds the rollouts of all of its shards."""

    paths: RolloutPaths
    progress: CollectionProgress
    refused: int
    """Number of missing rollouts whose tasks the environment rejected (`bad_task`)."""
    files: int
    """Number of files that were merged."""
    running: int
    """How many of them belong to jobs that are still running."""


def shard_files(output: Path) -> list[Path]:
    """Return the files of all jobs, also of those of which a killed process has left only the manifest to remove."""
    name_of = re.compile(f"({re.escape(output.stem)}{_COUNT.pattern})(?:{re.escape(output.suffix)}|_manifest\\.json)")
    names = map(name_of.fullmatch, (path.name for path in output.parent.glob(f"{escape(output.stem)}.shard-*")))
    found = {output.with_name(f"{name[1]}{output.suffix}") for name in names if name}
    earlier = RolloutPaths(output).sidecar("shared").glob("round-*/shards/*.jsonl")
    return sorted(found) + sorted(path for path in earlier if RolloutPaths(path).manifest.exists())


def merge(output: Path, *, only_idle: bool = False) -> Merged:
    """Add the rollouts, failed attempts and materialized inputs that the output lacks to it, each exactly once.

    The shards are removed once the output is complete, or with `only_idle`, which refuses those of running jobs. After
    a crash, the next merge goes on. Raises OperatorError if there is nothing to merge or the files are of different
    collections, InUse if another process is writing to the output, and RunError if a file cannot be read or written, or
    was moved meanwhile.
    """
    paths = RolloutPaths(output)
    if not shard_files(output) and not paths.manifest.exists():
        raise OperatorError(f"{output} has no shards: expected files such as {Shard(1, 2).output(output).name}")
    check_not_shared(output, paths.manifest, paths.sidecars())
    _check_same_collection(output)
    with ExitStack() as held:
        rows = held.enter_context(closing(JsonLines(output)))
        paths.remove_unfinished()
        manifest, files = _check_same_collection(output)  # again: another merge may have removed some before the lock
        idle, running = list[JsonLines](), list[Path]()
        for file in files:
            try:
                idle.append(held.enter_context(closing(JsonLines(file))))  # moves an incomplete last line aside
                for lines in filter(Path.exists, (RolloutPaths(file).failures, RolloutPaths(file).materialized)):
                    JsonLines(lines).close()  # likewise
            except InUse:
                if only_idle:
                    raise
                running.append(file)
        expected = _expected_of(manifest)
        progress, done = CollectionProgress(expected.count), KeySet()

        def add(key: Key, line: ParsedLine) -> bool:
            if is_new := done.add(key):
                progress.count(cast(RolloutRow, line.value))
            return is_new

        for key, line in valid_rows(rows.rows(), output, expected):
            add(key, line)
        if files:
            rows.check()
            replace(paths.manifest, encode_manifest(manifest))
        for file in files:
            for key, line in valid_rows(_lines(file), file, expected):
                if add(key, line):
                    rows.append(line.line[:-1])
        rows.sync()
        merged = [RolloutPaths(file) for file in files]
        _merge_lines(paths.failures, [file.failures for file in merged], lambda line: hash(line.line))
        _merge_lines(paths.materialized, [file.materialized for file in merged], _key)
        refused = sum(done.add(key) for key in _rejected(output, [], expected))  # no job has to collect them
        progress.resumed()
        progress.failed += refused
        if files:
            state: State = "complete" if progress.measured == expected.count else "incomplete"
            rows.check()
            replace(paths.status, orjson.dumps(progress.status(state).model_dump(), option=orjson.OPT_INDENT_2))
        if only_idle or len(done) == expected.count:
            for shard in (one for one in idle if one.path not in running):
                rows.check()  # an output that was moved away may have been begun again
                shard.check()
                _remove([shard.path])
            sync_folder(output.parent)
    return Merged(paths, progress, refused, len(files), len(running))


def is_ready_to_merge(output: Path) -> bool:
    """Return whether no job is running and every rollout is in a file, or was rejected. Raises InUse during a merge."""
    if is_locked(output):
        raise InUse(f"another process is writing to {output}; waiting for it")
    if any(map(is_locked, shard_files(output))):
        return False  # the last job that ends merges
    manifest, _ = _check_same_collection(output)
    expected, known = _expected_of(manifest), KeySet()
    for key, _ in rows_of(output, shard_files(output), expected):
        known.add(key)
    for key in _rejected(output, shard_files(output), expected):
        known.add(key)
    return len(known) == expected.count


def rows_of(output: Path, shards: list[Path], expected: Expected) -> Iterator[tuple[Key, ParsedLine]]:
    """Yield the complete rows of all files, shards first: a row that a merge moves meanwhile is not missed."""
    for path in (*shards, output):
        yield from valid_rows(_lines(path), path, expected)


def failures_of(output: Path, shards: list[Path], expected: Expected) -> Iterator[tuple[Key, ParsedLine]]:
    for path in (RolloutPaths(file).failures for file in (*shards, output)):
        yield from valid_failures(_lines(path), path, expected)


def sync(files: Iterable[Path]) -> None:
    """Make the rows and failed attempts in these files survive a power failure. Raises RunError."""
    for path in (path for file in files for path in (file, RolloutPaths(file).failures)):
        try:
            sync_file(path)
            sync_folder(path.parent)
        except FileNotFoundError:  # it has none, or a merge has moved and synced them
            continue
        except OSError as error:
            raise RunError(f"{path} cannot be synced: {error.strerror}") from error


def _rejected(output: Path, shards: list[Path], expected: Expected) -> Iterator[Key]:
    found = failures_of(output, shards, expected)
    return (key for key, line in found if line.value.get("failure_kind") == FailureKind.BAD_TASK)


def check_idle(output: Path, shard: Shard) -> None:
    """Raise InUse if a job with another n, or without a shard, is writing to the output."""
    for path in (output, *shard_files(output)):
        if _count(path) != str(shard.count) and is_locked(path):
            raise InUse(
                f"another process is writing to {path}, which a job of {shard.count} cannot share: wait for it, or "
                "choose another output"
            )


def known_manifest(
    output: Path, own: Path, identity: Json, code: Mapping[str, ServerCode], *, accept_changed_code: bool
) -> Manifest | None:
    """Return the manifest with which the other files of the output continue; None if they hold no rollouts."""
    found = None
    for path in (output, *shard_files(output)):
        if path != own and _size(path):
            if path == output and not RolloutPaths(path).manifest.exists():
                raise OperatorError(f"{path} has no manifest: continue it without --shard once, which adopts its rows")
            manifest = RolloutPaths(path).manifest
            known = resumed_manifest(manifest, path, identity, code, accept_changed_code=accept_changed_code)
            found = found or known
    return found


def remove_unbegun(output: Path) -> None:
    """Remove the files of jobs that ended before they had a manifest. Raises InUse if one of these jobs is running."""
    for file in shard_files(output):
        if _is_unbegun(file):
            with closing(JsonLines(file)):
                if _is_unbegun(file):  # still, now that no job can begin
                    _remove([file])


def _is_unbegun(file: Path) -> bool:
    return not _size(file) and not RolloutPaths(file).manifest.exists()


def move_aside(output: Path) -> list[str]:
    """Rename the files of all shards, and return notes. Raises InUse if a job is writing to one, or to the output."""
    files, stamp = shard_files(output), time.strftime("%Y%m%d-%H%M%S")
    if locked := next(filter(is_locked, (output, *files)), None):
        raise InUse(f"another process is writing to {locked}: wait for it, or choose another output")
    for file in files:
        RolloutPaths(file).remove_unfinished()
    return [
        f"{path.name} was renamed to {path.rename(unused(path.with_name(f'{path.name}.{stamp}'))).name}"
        for file in files
        for path in (file, *reversed(RolloutPaths(file).sidecars()))  # the manifest last, as in _remove
        if path.exists()
    ]


def shard_progress(output: Path) -> tuple[int, int] | None:
    """Return how many rollouts the jobs of the latest n have measured and expect; None if there are no shards."""
    found = [(file, status) for file in shard_files(output) if (status := read_status(file))]
    if not found:
        return None
    newest, _ = max(found, key=lambda one: one[1].updated)
    manifest = _manifest_of(newest)
    measured = sum(status.measured for file, status in found if _count(file) == _count(newest))
    return None if manifest is None else (measured, _expected_of(manifest).count)


def _check_same_collection(output: Path) -> tuple[Manifest, list[Path]]:
    """Return the manifest of the merged output and the shards that belong to it. Raises OperatorError."""
    first: Manifest | None = None
    named, files = output, list[Path]()
    for path in sorted((output, *shard_files(output)), key=lambda path: not _size(path)):
        manifest = _manifest_of(path)
        if manifest is None and not _size(path):
            files += [path] if path.exists() and path != output else []
            continue
        if manifest is None:
            raise OperatorError(
                f"{RolloutPaths(path).manifest} cannot be read, so it is not known what the rollouts in {path.name} "
                "belong to: restore it, or move them elsewhere"
            )
        if first is None:
            first, named = manifest, path
        elif problem := _difference(first, manifest):
            if not _size(path):
                continue  # a job that was started with wrong options and has measured nothing
            raise ChangedParameters(
                f"{path} is not of the same collection as {named}:\n{problem}\nMove it and its files elsewhere, or "
                "collect its rollouts again"
            )
        else:
            known = {version.digest for version in first.code}
            more = [version for version in manifest.code if version.digest not in known]
            first = first.model_copy(update={"code": [*first.code, *more]})
        if path != output:
            files.append(path)
    if first is None:
        raise OperatorError(f"no job has begun to collect {output}: there is no manifest that can be read")
    return first.model_copy(update={"output": output.name}), sorted(files)


def _difference(first: Manifest, other: Manifest) -> str:
    found = [f"  {name}: {old!r} there, {new!r} here" for name, old, new in differences(first.identity, other.identity)]
    # Rows without _ng_code are of the first version.
    if not found and first.code[:1] and other.code[:1] and first.code[0].digest != other.code[0].digest:
        found = [f"  the servers' code: {first.code[0].digest} there, {other.code[0].digest} here"]
    return "\n".join(found)


def _manifest_of(path: Path) -> Manifest | None:
    try:
        return Manifest.model_validate_json(RolloutPaths(path).manifest.read_bytes())
    except (OSError, ValidationError):
        return None


def _count(path: Path) -> str:
    found = _COUNT.search(path.name)
    return found[1] if found else ""


def _expected_of(manifest: Manifest) -> Expected:
    identity = manifest.identity
    return Expected(int(identity["rows"]), int(identity["num_repeats"]), total=identity.get(ROLLOUTS))


def _merge_lines(target: Path, sources: list[Path], name: Callable[[ParsedLine], object]) -> None:
    """Append the lines of the sources whose `name` the target does not hold yet."""
    if not any(source.exists() for source in sources):
        return
    with closing(JsonLines(target)) as lines:
        known = {name(line) for line in lines.rows()}
        for line in (line for source in sources for line in _lines(source)):
            if (found := name(line)) not in known:
                known.add(found)
                lines.append(line.line[:-1])
        lines.sync()


def _key(line: ParsedLine) -> object:
    return line.value.get("_ng_task_index"), line.value.get("_ng_rollout_index")


def _lines(path: Path) -> Iterator[ParsedLine]:
    """Yield the complete lines of a file; none if it does not exist (any more)."""
    try:
        yield from iter_jsonl(Lines(path, whole=True), refuse(path, REPAIR_HINT), parse=strict)
    except FileNotFoundError:
        return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _remove(files: list[Path]) -> None:
    for file in files:
        paths = RolloutPaths(file)
        paths.remove_unfinished()
        # The manifest last: without it, a file's rows are refused, and other files would not be found.
        for path in (paths.failures, paths.status, paths.materialized, file, paths.manifest):
            path.unlink(missing_ok=True)
