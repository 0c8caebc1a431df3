"""Failures for a trainer's request or checkpoint that is rejected before any engine is called."""

from __future__ import annotations

from rollyard.records.errors import Failure, FailureKind


def bad_request(detail: str) -> Failure:
    """Return the failure for a request or a checkpoint that is invalid."""
    return Failure(FailureKind.BAD_REQUEST, detail)


def conflict(detail: str) -> Failure:
    """Return the failure for a request that conflicts with the policy's current state."""
    return Failure(FailureKind.BAD_REQUEST, detail, status=409)
