"""Plan: the restrictions that a jail applies. The server sends them to the zygote once, at startup."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Plan:
    """How an answer is confined. Sizes are in bytes."""

    namespaces: bool
    """Whether every answer has its own user, process, mount and IPC namespaces."""
    landlock: bool
    """Whether Landlock restricts access to files, the network and signals."""
    seccomp: bool
    readable: tuple[str, ...]
    """Paths that stay readable under Landlock: the interpreter's files."""
    cpu_s: int
    wall_s: float
    memory: int
    processes: int
    file_size: int
    open_files: int
    tmp_size: int
    output: int
    tree: tuple[tuple[str, str], ...] = ()
    """Sources and targets of the only files that exist for an answer under Landlock; empty: the host's file tree."""
    rules: int = -1
    """The zygote's file descriptor for the Landlock ruleset that allows `readable`."""

    def fields(self) -> dict[str, Any]:
        """Return the fields as a dict that can be sent in a message."""
        return asdict(self)

    def with_time_scaled_by(self, times: int) -> Plan:
        """Return a plan with the CPU time and the deadline multiplied by `times`."""
        return replace(self, cpu_s=times * self.cpu_s, wall_s=times * self.wall_s)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Plan:
        """Rebuild a plan from the result of `fields`."""
        tree = tuple((source, target) for source, target in fields["tree"])
        return cls(**{**fields, "readable": tuple(fields["readable"]), "tree": tree})
