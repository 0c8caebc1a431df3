"""Record types of a collection's manifest. They are frozen and reject unknown fields."""

from __future__ import annotations

from pydantic import Field

from rollyard.services.config.server_code.code_history import CodeVersion
from rollyard.services.types import Json, Record


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
