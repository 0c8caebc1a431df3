"""merge_shards: the rollouts that several workers have measured so far, as a separate output."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollouts.rollout_keys import Expected
from rollyard.services.rollouts.shared.blocks import Blocks
from rollyard.services.rollouts.shared.merge import PUBLISHED, merge_into
from rollyard.services.rollouts.shared.opening import read_shared_manifest
from rollyard.services.rollouts.shared.shared_paths import SharedPaths
from rollyard.services.rollouts.shared.shared_records import MergeResult


def merge_shards(output: Path, target: Path) -> MergeResult:
    """Write the rollouts measured so far to `target`, with its sidecar files, without disturbing the workers.

    Reports and the viewer can read `target`; the collection continues in `output`. Raises OperatorError if no worker
    collects
    `output`, and RunError or OSError if a file cannot be read or written.
    """
    shared = SharedPaths(output)
    latest = shared.latest_round()
    if latest is None:
        raise OperatorError(f"{output} is not collected by several workers: {shared.folder} does not exist")
    manifest = read_shared_manifest(shared)
    identity = manifest.collection.identity
    blocks = Blocks(Expected(int(identity["rows"]), int(identity["num_repeats"])), manifest.block)
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        result = merge_into(folder, output, latest, manifest.collection, blocks, finished=latest.merged.exists())
        for file in PUBLISHED:
            file(RolloutPaths(folder / output.name)).replace(file(RolloutPaths(target)))
    finally:
        shutil.rmtree(folder)
    return result
