"""Opens the folder `X_shared`: one manifest that all workers match, and the round that they take part in."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.locked_files import open_unshared, unused
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollouts.manifest import check_not_shared, continued, new_manifest, resumed_manifest
from rollyard.records.rollouts.manifest_records import Manifest
from rollyard.records.rollouts.rollout_keys import Expected
from rollyard.records.run_types import ServerCode
from rollyard.records.types import Json
from rollyard.services.rollouts.appender import JsonLines
from rollyard.services.rollouts.shared.blocks import Blocks, block_size
from rollyard.services.rollouts.shared.earlier_rows import EarlierRows
from rollyard.services.rollouts.shared.exclusive_files import create_exclusive
from rollyard.services.rollouts.shared.shared_paths import RoundPaths, SharedPaths
from rollyard.services.rollouts.shared.shared_records import SharedManifest

_BRIEF_LOCK_S = 5.0
"""How long another worker may hold the output's lock, on a busy host."""


@dataclass(frozen=True)
class OpenRound:
    """A round that this process takes part in, or the last one if there is nothing left to collect."""

    paths: RoundPaths
    blocks: Blocks
    manifest: Manifest
    """The collection's manifest, with this worker's code."""
    before: EarlierRows
    is_over: bool
    """The round is merged, and no rollout is missing that can be collected."""


def open_round(
    output: Path,
    identity: Json,
    versions: Json,
    code: Mapping[str, ServerCode],
    expected: Expected,
    *,
    accept_changed_code: bool,
    input_path: str = "",
    block: int | None = None,
) -> OpenRound:
    """Join the current round of the output, or begin one. `block`: rollouts per block; default: by `block_size`.

    Raises OperatorError if the output or the other workers have different parameters, RunError if another process
    writes to the output or a file cannot be read.
    """
    shared, paths = SharedPaths(output), RolloutPaths(output)
    blocks = Blocks(expected, block or block_size(expected.count))
    try:
        check_not_shared(output, paths.manifest, paths.sidecars())
        _check_no_writer(output)
        latest = shared.latest_round()
        is_merged = latest is None or latest.merged.exists()  # before the output is read: a merge may be under way
        if output.exists() and output.stat().st_size:
            manifest = resumed_manifest(paths.manifest, output, identity, code, accept_changed_code=accept_changed_code)
        else:
            manifest = new_manifest(output, identity, versions, dict(code), input_path=input_path)
        before = EarlierRows.read(output, expected)
        if is_merged and not before.can_go_on(expected):
            _move_torn_tail(output)
            return OpenRound(latest or shared.round(1), blocks, manifest, before, is_over=True)
        shared.folder.mkdir(parents=True, exist_ok=True)
        proposed = SharedManifest(collection=manifest, block=blocks.size)
        create_exclusive(shared.manifest, orjson.dumps(proposed.model_dump(), option=orjson.OPT_INDENT_2))
        agreed = read_shared_manifest(shared)
        manifest = continued(agreed.collection, output, identity, code, accept_changed_code=accept_changed_code)
        if latest is None or is_merged:
            latest = shared.round(1 if latest is None else latest.number + 1)
        latest.create()
        _check_no_writer(output, latest)
    except OSError as error:
        raise OperatorError(f"{shared.folder} cannot be used: {error.strerror}") from error
    return OpenRound(latest, Blocks(expected, agreed.block), manifest, before, is_over=False)


def _move_torn_tail(output: Path) -> None:
    """Move an incomplete last line of the output to a separate file, unless another process has locked the output."""
    with suppress(RunError):
        JsonLines(output, open_unshared).close()


def read_shared_manifest(shared: SharedPaths) -> SharedManifest:
    """Return the manifest of the workers. Raises OperatorError if it cannot be read."""
    try:
        return SharedManifest.model_validate_json(shared.manifest.read_bytes())
    except (OSError, ValidationError) as error:
        raise OperatorError(
            f"{shared.manifest} cannot be read ({type(error).__name__}): choose another output, or move "
            f"{shared.folder} aside"
        ) from error


def check_no_workers(output: Path, *, overwrite: bool) -> str:
    """Raise OperatorError if several workers collect the output and have not merged their shards.

    `overwrite`: rename the folder of an earlier collection. Returns a note, empty if there is none.
    """
    shared = SharedPaths(output)
    latest = shared.latest_round()
    if latest is None:
        return ""
    if not latest.merged.exists():
        raise OperatorError(
            f"{output} is collected by several workers, whose rollouts are in {shared.folder}: repeat the command with "
            f"--worker NAME to take part and to merge them, or move {shared.folder} aside"
        )
    if not overwrite:
        return ""
    aside = unused(shared.folder.with_name(f"{shared.folder.name}.{time.strftime('%Y%m%d-%H%M%S')}"))
    shared.folder.rename(aside)
    return f"{shared.folder.name} was renamed to {aside.name}"


def _check_no_writer(output: Path, new_round: RoundPaths | None = None) -> None:
    """Raise RunError if a command without workers has locked the output, if its file system supports locks.

    Another worker locks it for a moment to adopt it, or to move its torn last line aside.
    """
    try:
        fd = os.open(output, os.O_RDONLY)
    except FileNotFoundError:
        return
    deadline = time.monotonic() + _BRIEF_LOCK_S
    try:
        while not _is_unlocked(fd):
            if time.monotonic() > deadline:
                raise BlockingIOError
            time.sleep(0.05)
    except BlockingIOError:
        if new_round is not None:
            for folder in (new_round.leases, new_round.workers, new_round.shards, new_round.folder):
                with suppress(OSError):
                    folder.rmdir()
        raise RunError(
            f"another process is writing to {output}: wait for it, then repeat the command, or choose another output"
        ) from None
    except OSError:
        return  # without locks, a command without workers refuses to write
    finally:
        os.close(fd)


def _is_unlocked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
