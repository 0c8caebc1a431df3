"""BoxPlan: what a shell box shows and allows. The server sends it once, before the box is set up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class BoxPlan:
    """Sizes are in bytes."""

    visible: tuple[str, ...]
    """Files and folders of the host that are visible read-only under their own paths, in addition to SYSTEM_PATHS."""
    folders: tuple[str, ...]
    """Writable folders to create."""
    storage: int
    """Size of everything that the box can write."""
    memory: int
    """Address space of each process."""
    processes: int
    open_files: int
    hostname: str = "box"

    def fields(self) -> dict[str, Any]:
        """Return the fields as a dict that can be sent in a message."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> BoxPlan:
        """Rebuild a plan from the result of `fields`."""
        return cls(**{**fields, "visible": tuple(fields["visible"]), "folders": tuple(fields["folders"])})
