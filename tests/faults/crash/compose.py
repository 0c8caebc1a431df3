"""Runs the services of a compose file as plain processes, without Docker.

The program runs in network, mount and UTS namespaces, which replace the containers' network.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from rollyard.services.sandbox.inside import libc
from tests.support.waiting import deadline_s

Service = dict[str, Any]
HOME = "/home/rollyard"
_CLONE_NEWNET, _CLONE_NEWUTS = 0x40000000, 0x4000000
_VARIABLE = re.compile(r"\$\{([A-Za-z_]+)(?:(:-|:\?)([^}]*))?\}")
HANG_S = 3 * deadline_s()


def interpolated(text: str, environ: Mapping[str, str]) -> str:

    def value(found: re.Match[str]) -> str:
        name, kind, word = found.groups()
        if environ.get(name):
            return environ[name]
        if kind == ":?":
            raise KeyError(f"{name}: {word}")
        return word or ""

    return _VARIABLE.sub(value, text)


def services(path: Path, environ: Mapping[str, str]) -> dict[str, Service]:
    """The services of a compose file; variables in comments are not substituted."""
    tree = yaml.safe_load(path.read_text())
    found: dict[str, Service] = json.loads(json.dumps(tree["services"]))
    return {name: _filled(service, environ) for name, service in found.items()}


def _filled(node: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(item, environ) for key, item in node.items()}
    if isinstance(node, list):
        return [_filled(item, environ) for item in node]
    return interpolated(node, environ) if isinstance(node, str) else node


class Host:
    """A host with the folder `folder` and a container for each started service."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs

    @contextmanager
    def running(self, name: str, service: Service) -> Iterator[subprocess.Popen[bytes]]:
        """Run the service's command until the end of the block."""
        with (self._folder / f"{name}.log").open("ab") as log:
            process = self._start(name, service, service["command"], log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(HANG_S)

    def run(self, name: str, service: Service, command: list[str], container: str = "") -> int:
        """Run a command in a container; return its exit status. Its output goes to the log `name`."""
        with (self._folder / f"{name}.log").open("ab") as log:
            return self._start(container or name, service, command, log).wait(HANG_S)

    def _start(self, name: str, service: Service, command: list[str], log: Any) -> subprocess.Popen[bytes]:
        home = self._folder / "containers" / name
        home.mkdir(parents=True, exist_ok=True)
        for volume in service.get("volumes", ()):
            outside, inside = volume.split(":")[:2]
            (self._folder / outside).mkdir(exist_ok=True)
            inside_here = home / Path(inside).relative_to(HOME)
            if not inside_here.is_symlink():
                inside_here.symlink_to((self._folder / outside).resolve())
        environment = {**service["environment"], "HOME": str(home), "PATH": f"{self._programs}:/usr/bin:/bin"}

        def name_host() -> None:
            libc.unshare(_CLONE_NEWUTS)
            socket.sethostname(name)

        return subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log, preexec_fn=name_host)


def become_a_machine(names: list[str], folder: Path) -> None:
    """Enter a network namespace with only loopback, where every name resolves to it. Raises OSError."""
    flags = libc.CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWUTS
    if os.getuid() == 0:
        libc.unshare(flags)
    else:
        libc.enter_user_namespace(0, 0, flags)
    libc.mount("none", "/", "none", libc.MS_REC | libc.MS_PRIVATE)
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
    libc.mount(str(hosts), "/etc/hosts", "none", libc.MS_BIND)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sh", b"lo", 0x1 | 0x40)
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS: up and running


def main() -> None:
    """Run docker-compose.yml in a folder: `up`, then a second collection. Print the observations as JSON."""
    compose, folder, programs = map(Path, sys.argv[1:4])
    environ = json.loads(sys.argv[4])
    second_settings: list[dict[str, str]] = json.loads(sys.argv[5])
    parts = services(compose, environ)
    become_a_machine([*parts], folder)
    host, observed = Host(folder, programs), dict[str, Any]()
    with ExitStack() as up:
        for name in ("head", "policy", "environment", "agent"):
            up.enter_context(host.running(name, parts[name]))
        started = time.monotonic()
        while "servers ready!" not in (folder / "head.log").read_text():
            if time.monotonic() > started + HANG_S:
                sys.exit("never ready")
            time.sleep(0.1)
        kind, *check = parts["head"]["healthcheck"]["test"]
        observed["health"] = (kind, host.run("health", parts["head"], check, container="head"))
        observed["collected"] = [host.run("collector", parts["collector"], parts["collector"]["command"])]
        for other in second_settings:
            again = services(compose, {**environ, **other})["collector"]
            observed["collected"].append(host.run("collector", again, again["command"]))
        up.enter_context(host.running("viewer", parts["viewer"]))
        observed["page"] = _page(parts["viewer"])
    print(json.dumps(observed))


def _page(viewer: Service) -> dict[str, Any]:
    """Wait for the viewer and return what a browser on the host gets through the published port."""
    address, outer, inner = viewer["ports"][0].split(":")
    assert f"+port={inner}" in viewer["command"]
    token = viewer["environment"]["ROLLYARD_TOKEN"]
    request = urllib.request.Request(
        f"http://{address}:{outer}/api/overview", headers={"Authorization": f"Bearer {token}"}
    )
    started = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as answer:
                return {"status": answer.status, "body": json.load(answer)}
        except ConnectionError:
            if time.monotonic() > started + HANG_S:
                raise
        except urllib.error.HTTPError as error:
            return {"status": error.code, "body": error.read().decode()}
        except urllib.error.URLError:
            if time.monotonic() > started + HANG_S:
                raise
        time.sleep(0.1)


if __name__ == "__main__":
    main()
