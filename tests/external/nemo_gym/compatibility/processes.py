from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

HOST = "127.0.0.1"
STOP_LIMIT_S = 10.0


class ServerProcess:
    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str], port: int, log: Path) -> None:
        self._port, self._log = port, log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def wait_until_listening(self, limit_s: float) -> str | None:
        """None if the server accepts connections, otherwise how it failed to."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self._process.poll() is not None:
                return "ended before it listened"
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((HOST, self._port)) == 0:
                    return None
            time.sleep(0.1)
        return f"did not listen within {limit_s:.0f} s"

    def printed(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            try:
                self._process.wait(timeout=STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                continue
            break
        self._process.wait()
