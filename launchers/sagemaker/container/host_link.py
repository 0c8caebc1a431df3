"""Tells the workers of a job when its head has ended, and with which status: each keeps a connection to it open."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from rollyard.records.errors import RunError

PORT = 6390
WAIT_S = 300.0
"""How long a host waits for the others. Instances of one job start within a few minutes."""
RETRY_S = 2.0


class HeadLink:
    """The head's side: accepts one connection from each worker and sends each the exit status at the end."""

    def __init__(self, port: int = PORT) -> None:
        self._server = socket.create_server(("", port), family=socket.AF_INET, backlog=64, reuse_port=False)
        self.port = int(self._server.getsockname()[1])
        self._workers: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def workers(self) -> int:
        """Number of workers that have connected."""
        return len(self._workers)

    def end(self, status: int) -> None:
        """Send the job's exit status to all workers."""
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


def connect(head: str, port: int, limit_s: float, stopped: Callable[[], bool]) -> socket.socket:
    """Connect a worker to its head. Raises RunError if the head does not answer within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            link = socket.create_connection((head, port), 5.0)
        except OSError as error:
            if stopped() or time.monotonic() + RETRY_S > deadline:
                raise RunError(
                    f"the head {head} did not answer at port {port} within {limit_s:.0f} s: {error}"
                ) from error
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
