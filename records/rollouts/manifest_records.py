"""Record types of a collection's manifest. They are frozen and reject unknown fields."""

from __future__ import annotations

from pydantic import Field

from rollyard.records.rollouts.code_history import CodeVersion
from rollyard.records.types import Json, Record


class Adoption(Record):
    """Records that rollouts without a manifest were checked and adopted."""

    time: float
    """Unix seconds."""
    rollouts: int
    new_keys: int
    """Number of rollouts whose `_ng_task_index` or `_ng_rollout_index` was missing or had to be changed."""
    original: str = ""
    """Name of the file before keys were written; empty if none had to be."""


class Manifest(Record):
    """The contents of `X_manifest.json`. Only a collection with the same `identity` can resume the output."""

    identity: Json
    versions: Json
    created: float
    """Creation time in Unix seconds."""
    output: str = ""
    """File name of the output; empty in older manifests, which did not record it."""
    code: list[CodeVersion] = Field(default_factory=list)
    """The servers' original code version, then the accepted changes; empty in manifests older than this field."""
    input: str = ""
    """Path of the input; empty if it is not one local file, and in older manifests."""
    adopted: Adoption | None = None
    """Set if the output existed before this manifest. Settings and code at that time are unknown."""
