"""Creates the row of X_failures.jsonl for a failed attempt."""

from __future__ import annotations

import time
from dataclasses import dataclass

import orjson

from rollyard.records.errors import Failure
from rollyard.records.rollouts.partial_records import PARTIAL_MEMBER
from rollyard.records.types import FailureRow, Json
from rollyard.services.datasets.tasks import Rollout


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


def encode_failure(row: FailureRow, partial: Json | None) -> bytes:
    """Return the line of X_failures.jsonl. The key `partial` is absent if the conversation is not known."""
    known = {} if partial is None else {PARTIAL_MEMBER: partial}
    return orjson.dumps({**row.model_dump(by_alias=True), **known})


def first_failure(row: FailureRow) -> str:
    """Return the line for the user about the first failure of a kind."""
    where = f"task {row.task_index}, repeat {row.rollout_index}"
    return f"first failure of kind {row.failure_kind} ({where}, {row.server or '?'}): {row.detail}"
