"""Records of a collection's manifest: frozen, and unknown fields are errors."""

from __future__ import annotations

from pydantic import Field

from rollyard.services.config.server_code.code_history import CodeVersion
from rollyard.services.types import Json, Record


class Manifest(Record):
    """`X_manifest.json`: the identity of a collection, which must be equal to resume it."""

    identity: Json
    versions: Json
    created: float
    """Unix seconds."""
    output: str = ""
    """File name of the rollouts; empty in manifests written before it was recorded."""
    code: list[CodeVersion] = Field(default_factory=list)
    """The collection's original code, then the accepted changes; empty in manifests older than this field."""
