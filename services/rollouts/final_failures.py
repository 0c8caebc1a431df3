"""Which failures are final: the rollout is never retried, not even by a later command."""

from __future__ import annotations

from collections.abc import Callable

from rollyard.records.errors import FailureKind

IsFinal = Callable[[str, str], bool]
"""Whether a failure of this kind, which originated at this server, is final."""


def is_bad_task(kind: str, server: str) -> bool:
    """The usual rule: the environment rejects the row."""
    return kind == FailureKind.BAD_TASK
