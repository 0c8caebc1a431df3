"""What stands in the manifest of a collection: frozen, and an unknown field is an error."""

from __future__ import annotations

from pydantic import Field

from rollyard.services.config.server_code.code_history import CodeVersion
from rollyard.services.types import Json, Record


class Manifest(Record):
    """`X_manifest.json`: the identity of a collection. `identity` must be equal for a resume."""

    identity: Json
    versions: Json
    created: float
    """Unix seconds."""
    output: str = ""
    """File name of the rollouts; empty in manifests written before it was recorded."""
    code: list[CodeVersion] = Field(default_factory=list)
    """The first one is the collection's own, others were accepted; empty in manifests of before code was recorded."""
