"""RayCluster: Ray on all hosts of a job. The first host is the head, and tells the others how it has ended (HeadLink).

`python -m rollyard.launchers.sagemaker.container.ray_cluster ADDRESS NODES SECONDS` waits until all nodes have joined.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.launchers.sagemaker.container.programs import Program
from rollyard.records.errors import OperatorError, RunError
from rollyard.services.http import ray_address

PORT = 6379
WAIT_S = 300.0
"""How long a host waits for the others. Instances of one job start within a few minutes."""
RETRY_S = 2.0
LINK_PORT = 6390
_NODES = (sys.executable, "-m", "rollyard.launchers.sagemaker.container.ray_cluster")


@dataclass
class RayCluster:
    head: str
    hosts: int
    num_gpus: int
    arguments: Sequence[str]
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
        connect(self.head, PORT, self.wait_s, self.stopped, "Ray on the head", self.check).close()


def _ip_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise RunError(f"the host {host} cannot be resolved: {error}") from error


class HeadLink:
    """The head's side of the connections by which workers learn when and how the job ends."""

    def __init__(self, port: int = LINK_PORT) -> None:
        self._server = socket.create_server(("", port), family=socket.AF_INET, backlog=64, reuse_port=False)
        self.port = int(self._server.getsockname()[1])
        self._workers: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def workers(self) -> int:
        return len(self._workers)

    def end(self, status: int) -> None:
        with self._lock:
            for worker in self._workers:
                with contextlib.suppress(OSError):
                    worker.sendall(f"{status}\n".encode())
        self.close()

    def close(self) -> None:
        """Close all connections; workers that got no status end with a failure."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()
        with self._lock:
            for worker in self._workers:
                worker.close()

    def _accept(self) -> None:
        while True:
            try:
                worker, _ = self._server.accept()
            except OSError:
                return
            with self._lock:
                self._workers.append(worker)


def connect(
    head: str,
    port: int,
    limit_s: float,
    stopped: Callable[[], bool],
    what: str = "the head",
    check: Callable[[], None] = lambda: None,
) -> socket.socket:
    """Connect to the head. Raises RunError if it does not answer within `limit_s`, or if `check` raises it."""
    deadline = time.monotonic() + limit_s
    while True:
        check()
        try:
            link = socket.create_connection((head, port), 5.0)
        except OSError as error:
            if stopped() or time.monotonic() + RETRY_S > deadline:
                problem = f"{what} {head} did not answer at port {port} within {limit_s:.0f} s"
                raise RunError(f"{problem}: {error}") from error
            time.sleep(RETRY_S)
            continue
        # A head whose instance is lost sends nothing: keepalive notices after about a minute.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4)):
            link.setsockopt(socket.IPPROTO_TCP, option, value)
        return link


def read_status(link: socket.socket, timeout_s: float) -> int | None:
    """Return the status that the head sent; None after the deadline. Raises RunError if the connection broke."""
    link.settimeout(timeout_s)
    try:
        data = link.recv(64)
    except TimeoutError:
        return None
    except OSError as error:
        raise RunError(f"the connection to the head broke: {error}") from error
    text = data.decode("ascii", "replace").strip()
    if not text.isdigit():
        raise RunError("the head ended without a status")
    return int(text)


def main() -> int:
    """Return 0 when enough nodes are alive, 1 if that takes longer than the limit."""
    address, wanted, limit_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    ray = ray_address.connect(address, "a job on several hosts")
    deadline = time.monotonic() + limit_s
    while True:
        alive = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
        if len(alive) >= wanted:
            return 0
        if time.monotonic() > deadline:
            print(f"{len(alive)} of {wanted} hosts joined within {limit_s:.0f} s: {', '.join(alive)}", file=sys.stderr)
            return 1
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
