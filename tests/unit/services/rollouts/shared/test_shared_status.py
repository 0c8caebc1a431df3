from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.types import CollectionStatus
from rollyard.services.rollouts.shared.shared_status import shared_status
from tests.unit.services.rollouts.shared.workers import new_round, write_shard


def write_status(output: Path, **changes: Any) -> None:
    values = {
        "state": "running",
        "expected": 10,
        "failed": 0,
        "failed_attempts": 1,
        "in_flight": 2,
        "rollouts_per_s": 0.5,
        "successes": 1,
        "reward_stderr": 0.1,
        "eta_s": None,
        "failures": {"timeout": 1},
        "pid": 1,
    }
    status = CollectionStatus.model_validate({**values, **changes})
    RolloutPaths(output).status.write_bytes(orjson.dumps(status.model_dump()))


def test_the_status_counts_what_is_merged_and_what_all_workers_have(tmp_path: Path) -> None:
    output, paths = tmp_path / "out.jsonl", new_round(tmp_path)
    write_status(output, measured=3, mean_reward=1.0, state="interrupted", updated=1.0)
    write_status(write_shard(paths, "a-1", []), measured=1, mean_reward=0.0, updated=2.0)
    write_status(write_shard(paths, "b-1", []), measured=2, mean_reward=0.5, updated=3.0, note="draining")
    found = shared_status(output)
    assert found is not None
    assert (found.measured, found.expected, found.in_flight, found.failed_attempts) == (6, 10, 4, 3)
    assert (found.mean_reward, found.successes, found.rollouts_per_s) == (4.0 / 6, 3, 1.0)
    assert (found.failures, found.note, found.updated) == ({"timeout": 3}, "draining", 3.0)


def test_the_status_after_a_merge_is_that_of_the_output(tmp_path: Path) -> None:
    output, paths = tmp_path / "out.jsonl", new_round(tmp_path)
    write_status(write_shard(paths, "a-1", []), measured=4, mean_reward=None, updated=2.0)
    before = shared_status(output)
    assert before is not None and before.measured == 4
    paths.merged.touch()
    assert shared_status(output) is None
    write_status(output, measured=4, mean_reward=0.5, updated=1.0)
    found = shared_status(output)
    assert found is not None and found.updated == 1.0
