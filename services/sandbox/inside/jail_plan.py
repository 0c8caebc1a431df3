"""Plan: the restrictions of a jail, which the server sends to the zygote once at startup."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Plan:
    """How an answer is confined. Sizes in bytes."""

    namespaces: bool
    """Separate user, process, mount and IPC namespaces for every answer."""
    landlock: bool
    """Landlock rules on files, the network and signals."""
    seccomp: bool
    readable: tuple[str, ...]
    """Paths that stay readable under Landlock: those of the interpreter."""
    cpu_s: int
    wall_s: float
    memory: int
    processes: int
    file_size: int
    open_files: int
    tmp_size: int
    output: int
    rules: int = -1
    """The zygote's descriptor of the Landlock ruleset for `readable`."""

    def fields(self) -> dict[str, Any]:
        """Return the fields, for a message."""
        return asdict(self)

    def with_time_scaled_by(self, times: int) -> Plan:
        """Return the plan with `times` the CPU time and deadline."""
        return replace(self, cpu_s=times * self.cpu_s, wall_s=times * self.wall_s)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Plan:
        """Rebuild the plan from `fields()`."""
        return cls(**{**fields, "readable": tuple(fields["readable"])})
