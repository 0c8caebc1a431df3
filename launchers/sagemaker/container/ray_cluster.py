"""RayCluster: Ray on all hosts of a job. The first host is the head."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.launchers.sagemaker.container.host_link import RETRY_S, WAIT_S
from rollyard.launchers.sagemaker.container.programs import Program
from rollyard.records.errors import OperatorError, RunError

PORT = 6379
_NODES = (sys.executable, "-m", "rollyard.launchers.sagemaker.container.ray_nodes")


@dataclass
class RayCluster:
    """Ray's processes on this host."""

    head: str
    hosts: int
    num_gpus: int
    arguments: Sequence[str]
    """More arguments of `ray start`."""
    environment: Mapping[str, str]
    folder: Path
    log: Path
    print_line: Callable[[str], None]
    stopped: Callable[[], bool]
    wait_s: float = WAIT_S
    _node: Program | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return f"{_ip_of(self.head)}:{PORT}"

    def start_head(self) -> None:
        """Start the head and wait until all hosts have joined. Raises RunError if they do not within `wait_s`."""
        self._start("--head", f"--port={PORT}", f"--node-ip-address={_ip_of(self.head)}", "--include-dashboard=false")
        self._wait_for_port()
        command = [*_NODES, self.address, str(self.hosts), str(self.wait_s)]
        done = subprocess.run(command, env=dict(self.environment), capture_output=True, text=True, check=False)
        if done.returncode:
            reason = next(iter(reversed(done.stderr.strip().splitlines())), f"exit status {done.returncode}")
            raise RunError(f"the Ray cluster of {self.hosts} hosts is not complete: {reason}")
        self.print_line(f"Ray runs on {self.hosts} hosts at {self.address}")

    def join(self, current_host: str) -> None:
        """Wait for the head's port and join the cluster."""
        self._wait_for_port()
        self._start(f"--address={self.address}", f"--node-ip-address={_ip_of(current_host)}")

    def check(self) -> None:
        """Raise RunError if Ray has ended on this host."""
        if self._node is not None and (status := self._node.poll()) is not None:
            raise RunError(f"Ray ended with exit status {status}: {self._node.last_line()}")

    def stop(self) -> None:
        """End Ray on this host. Nothing uses it any longer, so it need not drain for 30 seconds."""
        if self._node is not None:
            self._node.end(0.5)
            self._node = None

    def _start(self, *options: str) -> None:
        if shutil.which("ray", path=self.environment.get("PATH")) is None:
            raise OperatorError("several hosts need Ray, which is not installed in this image: install rollyard[ray]")
        self._node = Program(
            "ray",
            [
                "ray",
                "start",
                "--block",
                f"--num-gpus={self.num_gpus}",
                "--disable-usage-stats",
                *options,
                *self.arguments,
            ],
            environment=self.environment,
            folder=self.folder,
            log=self.log,
            print_line=self.print_line,
        )

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + self.wait_s
        while True:
            self.check()
            try:
                socket.create_connection((self.head, PORT), 5.0).close()
                return
            except OSError as error:
                if self.stopped() or time.monotonic() + RETRY_S > deadline:
                    raise RunError(f"Ray on {self.head} did not answer within {self.wait_s:.0f} s: {error}") from error
                time.sleep(RETRY_S)


def _ip_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise RunError(f"the host {host} cannot be resolved: {error}") from error
