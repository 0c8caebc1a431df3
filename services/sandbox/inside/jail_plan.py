"""What jails and shell boxes show and allow. The server sends a plan once, as JSON, so its tuples arrive as lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Plan:
    """How an answer is confined. Sizes are in bytes."""

    namespaces: bool
    """Whether every answer has its own user, process, mount and IPC namespaces."""
    landlock: bool
    """Whether Landlock restricts access to files, the network and signals."""
    seccomp: bool
    readable: Sequence[str]
    """Paths that stay readable under Landlock: the interpreter's files."""
    cpu_s: int
    wall_s: float
    memory: int
    processes: int
    file_size: int
    open_files: int
    tmp_size: int
    output: int
    tree: Sequence[tuple[str, str]] = ()
    """Sources and targets of the only files that exist for an answer under Landlock; empty: the host's file tree."""
    rules: int = -1
    """The zygote's file descriptor for the Landlock ruleset that allows `readable`."""

    def with_time_scaled_by(self, times: int) -> Plan:
        """Return a plan with the CPU time and the deadline multiplied by `times`."""
        return replace(self, cpu_s=times * self.cpu_s, wall_s=times * self.wall_s)


@dataclass(frozen=True)
class BoxPlan:
    """What a box shows and allows. Sizes are in bytes."""

    visible: Sequence[str]
    """Files and folders of the host that are visible read-only under their own paths, in addition to SYSTEM_PATHS."""
    folders: Sequence[str]
    """Writable folders to create."""
    storage: int
    """Size of everything that the box can write."""
    memory: int
    """Address space of each process."""
    processes: int
    open_files: int
    output: int = 64 * 1024
    """How much is kept of a command's output."""
    image: str = ""
    """The image of a container; other boxes have none."""
    network: bool = False
    endpoint: bool = False
    """Whether the box's processes may connect to one server outside (`Box.listener`)."""
    hostname: str = "box"
