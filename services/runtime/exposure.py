"""Checks that a run has a token if other hosts could reach its servers; names the process that holds a port."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.http.access import ProcNet, is_loopback


def check_exposure(servers: Iterable[ServerSpec], token: str | None, head_host: str) -> None:
    """Raise OperatorError if servers or the head would be reachable from other hosts without a token."""
    if token:
        return
    specs = [spec for spec in servers if spec.external_url is None]
    exposed = [f"{spec.name} ({spec.settings.host})" for spec in specs if not is_loopback(spec.settings.host)]
    if not is_loopback(head_host):
        exposed.insert(0, f"the head ({head_host})")
    remedy = "add --token ... or export ROLLYARD_TOKEN=..., and send it as Authorization: Bearer"
    if exposed:
        raise OperatorError(f"{', '.join(exposed)} would be open to other hosts without a run token: {remedy}")
    for spec in specs:
        if reason := spec.settings.token_needed_for:
            raise OperatorError(f"{spec.name}: {reason}: {remedy}")


def owner_of_port(port: int) -> str:
    """Return `, held by process 123 (ng_run)`, or an empty string if the owner cannot be determined."""
    inodes = {str(found.inode) for at, found in ProcNet().listeners() if at == port}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for descriptor in (process / "fd").iterdir():
                target = str(descriptor.readlink())
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    command_line = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                    program = next(
                        (
                            argument
                            for argument in command_line
                            if "python" not in argument and not argument.startswith("-")
                        ),
                        command_line[0],
                    )
                    return f", held by process {process.name} ({Path(program).name})"
        except OSError:
            continue
    return ""
