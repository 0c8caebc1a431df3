"""Which failures keep the next command from retrying a rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import FailureKind
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import FailureRow
from rollyard.services.rollouts.store import RolloutStore
from tests.support.failed_attempts import failure_row


def is_retried(folder: Path, failure: FailureRow, **rule: Any) -> bool:
    """Whether the next command retries a rollout that failed like this. A final one is known at once and later."""
    found = set()
    for command in ("first", "second"):
        store = RolloutStore(RolloutPaths(folder / "out.jsonl"), {}, {}, resume=True, overwrite=False, **rule)
        store.load()
        if command == "first":
            store.append_failure(failure)
        store.close()
        found.add((0, 0) not in store.permanently_failed)
    (retried,) = found
    return retried


@pytest.mark.parametrize("kind", list(FailureKind))
def test_only_a_bad_task_is_never_retried(tmp_path: Path, kind: FailureKind) -> None:
    assert is_retried(tmp_path, failure_row(failure_kind=kind)) is (kind is not FailureKind.BAD_TASK)


@pytest.mark.parametrize("server", ["policy", "environment"])
def test_a_collection_may_have_a_rule_of_its_own(tmp_path: Path, server: str) -> None:
    def is_final(kind: str, server: str) -> bool:
        return (kind, server) == ("timeout", "policy")

    assert is_retried(tmp_path, failure_row(server=server), is_final=is_final) is (server == "environment")
