"""Reads the status file that a collection writes next to its output."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import ValidationError

from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.types import CollectionStatus


def read_status(output: Path) -> CollectionStatus | None:
    """Return the status of the collection that writes `output`, or None if it is absent or unreadable."""
    try:
        return CollectionStatus.model_validate_json(RolloutPaths(output).status.read_bytes())
    except (OSError, ValidationError):
        return None


def is_running(status: CollectionStatus | None, silent_s: float) -> bool:
    """Return whether the collection is running. If it was killed, its status is older than `silent_s` seconds."""
    return status is not None and status.state == "running" and time.time() - status.updated < silent_s
