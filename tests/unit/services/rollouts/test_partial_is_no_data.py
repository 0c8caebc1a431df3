"""What had been said in a failed attempt is no data: no reward, metric, finding or training sequence comes from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollyard
from rollyard.analysis.metrics.run_plan import read_failed_attempts, read_run_plan
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import FailureRow, Json
from rollyard.services.rollouts.store import RolloutStore
from rollyard.training.step_files import StepFiles
from tests.support.rollout_files import grid, write

TURN: Json = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "solved"}],
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.1],
}
PARTIAL: Json = {
    "source": "agent",
    "reward": 100.0,
    "row": {
        "reward": 100.0,
        "success": True,
        "_ng_task_index": 1,
        "_ng_rollout_index": 0,
        "responses_create_params": {"input": []},
        "response": {"output": [TURN]},
    },
}
FAILED: Json = {
    "_ng_task_index": 1,
    "_ng_rollout_index": 0,
    "_ng_attempt_index": 0,
    "failure_kind": "timeout",
    "server": "environment",
    "terminal": False,
    "time": 1.0,
}


def run_of(folder: Path, failed: Json) -> Path:
    folder.mkdir()
    path = write(folder / "step_000001.jsonl", grid([0, 1], 1))
    write(RolloutPaths(path).failures, [failed])
    return path


def rollouts(path: Path) -> Any:
    return list(rollyard.read_rollouts(path))


def attempts_of_the_report(path: Path) -> Any:
    attempts = read_run_plan(path).attempts
    return attempts.task.tolist(), attempts.repeat.tolist(), attempts.kind, attempts.server


def attempts_of_findings(path: Path) -> Any:
    failed = read_failed_attempts(path)
    return failed.task.tolist(), failed.kind, failed.time.tolist()


def failures_of_training(path: Path) -> Any:
    files = StepFiles(path)
    return files.rows(files.paths.failures)


@pytest.mark.parametrize("read", [rollouts, attempts_of_the_report, attempts_of_findings, failures_of_training])
def test_readers_see_the_same_with_and_without_it(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    without, recorded = run_of(tmp_path / "without", FAILED), run_of(tmp_path / "with", {**FAILED, "partial": PARTIAL})
    assert read(without) == read(recorded)


@pytest.mark.parametrize("partial", [None, PARTIAL])
def test_a_resumed_collection_counts_the_attempt_as_failed(tmp_path: Path, partial: Json | None) -> None:
    more = {"agent_ref": {}, "status": 504, "upstream_status": None, "detail": "", "duration_s": 1.0}
    failed = FailureRow.model_validate({**FAILED, **more})
    paths = RolloutPaths(tmp_path / "rollouts.jsonl")
    store = RolloutStore(paths, {}, {}, resume=True, overwrite=False)
    store.append_failure(failed, partial)
    store.close()
    resumed = RolloutStore(paths, {}, {}, resume=True, overwrite=False)
    resumed.load()
    resumed.close()
    assert (resumed.attempts, (1, 0) in resumed.done) == ({(1, 0): 1}, False)
