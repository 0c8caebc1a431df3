"""Which failures keep the next command from retrying a rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_paths import RolloutPaths
from rollyard.records.types import FailureRow
from rollyard.services.rollouts.store import RolloutStore


def failed(kind: FailureKind, server: str = "environment") -> FailureRow:
    return FailureRow(
        task_index=0,
        rollout_index=0,
        attempt_index=0,
        agent_ref={"name": "agent"},
        failure_kind=kind,
        server=server,
        status=500,
        upstream_status=None,
        detail="",
        terminal=Failure(kind, "").terminal,
        time=0.0,
        duration_s=0.0,
    )


@pytest.mark.parametrize("kind", list(FailureKind))
def test_only_a_bad_task_is_never_retried(tmp_path: Path, kind: FailureKind) -> None:
    paths = RolloutPaths(tmp_path / "out.jsonl")
    first = RolloutStore(paths, {}, {}, resume=True, overwrite=False)
    first.append_failure(failed(kind))
    first.close()
    reopened = RolloutStore(paths, {}, {}, resume=True, overwrite=False)
    reopened.load()
    reopened.close()
    assert ((0, 0) in reopened.permanently_failed) is (kind is FailureKind.BAD_TASK)


@pytest.mark.parametrize("server", ["policy", "environment"])
def test_a_collection_may_have_a_rule_of_its_own(tmp_path: Path, server: str) -> None:
    def is_final(kind: str, server: str) -> bool:
        return (kind, server) == ("timeout", "policy")

    paths = RolloutPaths(tmp_path / "out.jsonl")
    for command in ("first", "second"):
        store = RolloutStore(paths, {}, {}, resume=True, overwrite=False, is_final=is_final)
        store.load()
        if command == "first":
            store.append_failure(failed(FailureKind.TIMEOUT, server))
        store.close()
        assert ((0, 0) in store.permanently_failed) is (server == "policy"), command
