"""Which failures keep the next command from retrying a rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.io.rollout_paths import RolloutPaths
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.types import FailureRow


@pytest.mark.parametrize("kind", list(FailureKind))
def test_only_a_bad_task_is_never_retried(tmp_path: Path, kind: FailureKind) -> None:
    failed = FailureRow(
        task_index=0,
        rollout_index=0,
        attempt_index=0,
        agent_ref={"name": "agent"},
        failure_kind=kind,
        server="environment",
        status=500,
        upstream_status=None,
        detail="",
        terminal=Failure(kind, "").terminal,
        time=0.0,
        duration_s=0.0,
    )
    paths = RolloutPaths(tmp_path / "out.jsonl")
    first = RolloutStore(paths, {}, {}, resume=True, overwrite=False)
    first.append_failure(failed)
    first.close()
    reopened = RolloutStore(paths, {}, {}, resume=True, overwrite=False)
    reopened.load()
    reopened.close()
    assert ((0, 0) in reopened.permanently_failed) is (kind is FailureKind.BAD_TASK)
