"""Merges the shards of a round into the output and its sidecar files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import orjson

from rollyard.records.errors import FailureKind, RunError
from rollyard.records.io.jsonl import iter_jsonl, refuse
from rollyard.records.io.lines import Lines
from rollyard.records.io.locked_files import sync_folder, unused, write_synced
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rollouts.manifest import encode_manifest
from rollyard.records.rollouts.manifest_records import Manifest
from rollyard.records.rollouts.rollout_keys import KeySet
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.shared.blocks import Blocks
from rollyard.services.rollouts.shared.leases import Leases
from rollyard.services.rollouts.shared.merged_shards import sizes_of
from rollyard.services.rollouts.shared.rollout_lines import failure_lines
from rollyard.services.rollouts.shared.shard_choice import ShardChoice, shards_of
from rollyard.services.rollouts.shared.shared_paths import RoundPaths
from rollyard.services.rollouts.shared.shared_records import MergeResult, Owner


def merge_into(
    folder: Path,
    output: Path,
    round_paths: RoundPaths,
    origin: Manifest,
    blocks: Blocks,
    *,
    finished: bool,
    merged_by: Owner | None = None,
) -> MergeResult:
    """Write the files of the merged collection to `folder`, under the names that they have next to `output`.

    Rows of `output` come first, unchanged. `finished`: every block is done, so that missing rollouts have failed.
    Raises RunError or OSError.
    """
    base, merged = RolloutPaths(output), RolloutPaths(folder / output.name)
    tokens = round_paths.shard_tokens()
    shards, sizes = [round_paths.shard(token) for token in tokens], sizes_of(round_paths, tokens)
    choice = ShardChoice(output, shards_of(tokens, [shard.output for shard in shards], Leases(round_paths)), blocks)
    progress = CollectionProgress(blocks.expected.count)
    counted = _counting(progress, (line for part in (_whole_lines(output), choice.lines()) for line in part), output)
    _write(merged.output, counted)
    superseded = _write(folder / round_paths.superseded.name, choice.superseded())
    refused = KeySet()

    def failures() -> Iterator[bytes]:
        for _, _, line, row in iter_jsonl(_numbered(_failures([base, *shards], blocks)), refuse(merged.failures)):
            progress.count_failure(row["failure_kind"], permanent=False)
            if row["failure_kind"] == FailureKind.BAD_TASK:
                refused.add((row["_ng_task_index"], row["_ng_rollout_index"]))
            yield line

    _write(merged.failures, failures())
    _write(merged.manifest, [encode_manifest(_manifest(origin, output, [base, *shards]))])
    progress.resumed()
    missing = progress.expected - progress.measured
    progress.failed = missing if finished else 0
    status = progress.status("complete" if not missing else "incomplete" if finished else "interrupted")
    _write(merged.status, [orjson.dumps(status.model_dump(), option=orjson.OPT_INDENT_2)])
    result = MergeResult(
        expected=progress.expected,
        measured=progress.measured,
        refused=len(refused),
        superseded=superseded,
        shards=len(tokens),
        merged_by=merged_by,
        output_bytes=merged.output.stat().st_size,
        shard_sizes=sizes,
    )
    _write(folder / round_paths.merged.name, [orjson.dumps(result.model_dump(), option=orjson.OPT_INDENT_2)])
    return result


def keep_torn_tail(output: Path) -> str:
    """Copy an incomplete last line of the output to a separate file, because the merge drops it; return a note."""
    size = output.stat().st_size if output.exists() else 0
    whole = Lines(output, whole=True)
    for _ in whole if size else ():
        pass
    if whole.end == size:
        return ""
    with output.open("rb") as file:
        file.seek(whole.end)
        aside = unused(output.with_name(f"{output.stem}_torn{output.suffix}"))
        write_synced(aside, file.read())
    return f"the last line of {output} was incomplete; it was copied to {aside}"


def _counting(progress: CollectionProgress, lines: Iterable[bytes], output: Path) -> Iterator[bytes]:
    for _, _, line, row in iter_jsonl(_numbered(lines), refuse(output)):
        progress.count(cast(RolloutRow, row))
        yield line


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each line with an offset of 0, because lines of several files have no common offset."""
    return ((0, line) for line in lines)


def _whole_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        yield from (line for _, line in Lines(path, whole=True) if not line.isspace())


def _failures(files: Iterable[RolloutPaths], blocks: Blocks) -> Iterator[bytes]:
    """Yield the failed attempts of all files, each line once: after a crash, the first file contains the others."""
    known: set[int] = set()
    for paths in files:
        for keyed in failure_lines(paths.failures, blocks.expected):
            if (found := hash(keyed.line)) not in known:
                known.add(found)
                yield keyed.line


def _manifest(origin: Manifest, output: Path, files: Iterable[RolloutPaths]) -> Manifest:
    """Return the manifest with the code versions of all workers."""
    versions = {version.digest: version for version in origin.code}
    for paths in files:
        if paths.manifest.exists():
            for version in Manifest.model_validate_json(paths.manifest.read_bytes()).code:
                versions.setdefault(version.digest, version)
    first, others = origin.code[:1], list(versions.values())[len(origin.code[:1]) :]
    ordered = [*first, *sorted(others, key=lambda code: code.since)]  # rows of the first version are not marked
    return origin.model_copy(update={"output": output.name, "code": ordered})


def _write(path: Path, pieces: Iterable[bytes]) -> int:
    """Write and sync a file; return the number of pieces. Raises RunError if it cannot be written."""
    count = 0
    try:
        with path.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                count += 1
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    return count


PUBLISHED: tuple[Callable[[RolloutPaths], Path], ...] = (
    lambda paths: paths.manifest,
    lambda paths: paths.failures,
    lambda paths: paths.output,
    lambda paths: paths.status,
)
"""The files that a merge moves next to the output, in this order."""


def publish(folder: Path, output: Path, round_paths: RoundPaths) -> None:
    """Move the files of a merge into place. Each of them is complete; a crash in between is repaired by a new merge.

    Raises OSError if another worker has taken over the merge and removed the files.
    """
    merged, target = RolloutPaths(folder / output.name), RolloutPaths(output)
    (folder / round_paths.superseded.name).replace(round_paths.superseded)
    for file in PUBLISHED:
        file(merged).replace(file(target))
    sync_folder(output.parent)
    # The last step, and one that a worker whose turn is over cannot do: a new round begins after it.
    (folder / round_paths.merged.name).replace(round_paths.merged)
    sync_folder(round_paths.folder)
