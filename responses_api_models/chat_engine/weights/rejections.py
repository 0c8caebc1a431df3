"""Refusal: a checkpoint or a request of a trainer that is turned down before any engine is asked."""

from __future__ import annotations

from rollyard.services.errors import Failure, FailureKind


def bad_request(told: str) -> Failure:
    """What was asked for can never work: a mistake in the request or in the checkpoint."""
    return Failure(FailureKind.BAD_REQUEST, told)


def conflict(told: str) -> Failure:
    """It does not fit what the policy is or does now."""
    return Failure(FailureKind.BAD_REQUEST, told, status=409)
