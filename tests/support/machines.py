"""Machines simulated by network namespaces on a bridge. Needs root and `ip`; the host's own network does not change."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CAN_SIMULATE = os.geteuid() == 0 and shutil.which("ip") is not None
GATEWAY = "10.77.0.254"
"""Address of the bridge, in the namespace that connects the machines."""
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Machines:
    """Simulated machines; `bridge` is the namespace that connects them."""

    bridge: str
    prefixes: dict[str, list[str]]
    """Address -> the command prefix that runs a command on that machine."""

    @contextlib.contextmanager
    def inside_bridge(self) -> Iterator[None]:
        """Move this thread, and the processes and threads that it starts, into the bridge's namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/proc/thread-self/ns/net").open() as before, Path(f"/run/netns/{self.bridge}").open() as namespace:
            assert libc.setns(namespace.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())

    @contextlib.contextmanager
    def cut(self, address: str) -> Iterator[None]:
        """Disconnect a machine: nothing that the others send reaches it, and nothing says so."""
        link = f"v{list(self.prefixes).index(address) + 1}"
        ip("-n", self.bridge, "link", "set", link, "down")
        try:
            yield
        finally:
            ip("-n", self.bridge, "link", "set", link, "up")

    @contextlib.contextmanager
    def host_names(self, names: dict[str, str]) -> Iterator[None]:
        """Make host names known on all machines. `names`: name -> address."""
        folders = [Path("/etc/netns") / prefix[-1] for prefix in self.prefixes.values()]
        made = not folders[0].parent.exists()
        try:
            for folder in folders:
                folder.mkdir(parents=True)
                lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
                (folder / "hosts").write_text("\n".join(lines) + "\n")
            yield
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            if made:
                with contextlib.suppress(OSError):
                    folders[0].parent.rmdir()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def simulated_machines(tag: str, count: int = 2) -> Iterator[Machines]:
    """Create machines with the addresses 10.77.0.1, 10.77.0.2, ...; skips the test where that is not possible."""
    tag = f"{tag}{os.getpid()}"
    names = [f"{tag}s", *(f"{tag}{number}" for number in range(1, count + 1))]
    with contextlib.ExitStack() as leaving:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
            leaving.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        bridge = names[0]
        ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", bridge, "addr", "add", f"{GATEWAY}/24", "dev", "br0")
        ip("-n", bridge, "link", "set", "br0", "up")
        for number, name in enumerate(names[1:], start=1):
            # Both ends are created inside the namespaces, so the host never sees a veth.
            ip("-n", bridge, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", bridge, "link", "set", f"v{number}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "add", "default", "via", GATEWAY)
        numbered = enumerate(names[1:], start=1)
        yield Machines(bridge, {f"10.77.0.{number}": ["ip", "netns", "exec", name] for number, name in numbered})
