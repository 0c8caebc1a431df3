"""The address of the head, in Rollyard's form (--head HOST:PORT) or in NeMo Gym's (--head-server.port ...)."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from rollyard.records.errors import OperatorError
from rollyard.records.types import Record


class HeadServer(Record):
    """NeMo Gym's setting `head_server`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=11000, ge=1, le=65535)


def head_address(head: str | None, head_server: HeadServer | None) -> str | None:
    """Return the address that the options contain, or None. Raises OperatorError if they contain two."""
    if head_server is None:
        return head
    if head is not None:
        raise OperatorError("--head and --head-server are the same setting: pass one of them")
    host = f"[{head_server.host}]" if ":" in head_server.host else head_server.host
    return f"{host}:{head_server.port}"
