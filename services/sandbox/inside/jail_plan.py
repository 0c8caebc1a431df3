"""Plan: what the server tells the jail, once, when the jail is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Plan:
    """How an answer is locked in. Sizes in bytes."""

    namespaces: bool
    """A user, process, mount and IPC namespace of its own for every answer."""
    landlock: bool
    """Landlock rules on files, the network and signals."""
    seccomp: bool
    readable: tuple[str, ...]
    """What Landlock leaves in view: the Python."""
    cpu_s: int
    wall_s: float
    memory: int
    processes: int
    file_size: int
    open_files: int
    tmp_size: int
    output: int
    rules: int = -1
    """The zygote's descriptor of what `readable` became for Landlock."""

    def fields(self) -> dict[str, Any]:
        """For a message."""
        return asdict(self)

    def lasting(self, times: int) -> Plan:
        """The plan with `times` the CPU and clock."""
        return replace(self, cpu_s=times * self.cpu_s, wall_s=times * self.wall_s)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Plan:
        """What `fields` said."""
        return cls(**{**fields, "readable": tuple(fields["readable"])})
