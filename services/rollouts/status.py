"""The status that a collection keeps beside its output, as other commands read it."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import ValidationError

from rollyard.services.rollouts.store import StorePaths
from rollyard.services.types import CollectionStatus


def read_status(output: Path) -> CollectionStatus | None:
    """The status of the collection that writes `output`; None where there is none that can be read."""
    try:
        return CollectionStatus.model_validate_json(StorePaths(output).status.read_bytes())
    except (OSError, ValidationError):
        return None


def is_running(status: CollectionStatus | None, silent_s: float) -> bool:
    """Whether the collection goes on now: one that was killed leaves a status that is older than `silent_s`."""
    return status is not None and status.state == "running" and time.time() - status.updated < silent_s
