"""An interpreter that has imported nemo_gym and runs each program in a fork of itself.

Importing nemo_gym takes ten seconds of CPU time, and the table starts more than two hundred of its programs.
`WarmPython` starts such an interpreter, and writes a program `warm-python` that runs a script in a fork: with the
arguments, the environment variables, the working directory and the standard streams of whoever calls it. The call ends
with the fork, and the fork with the call, even if that is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.external.nemo_gym.compatibility.catalog import PYTHON
from tests.support.waiting import deadline_s

START_LIMIT_S = 300.0
SYSTEM_INSTALLERS = ("apt", "apt-get", "aptitude", "dpkg", "sudo", "yum", "dnf", "apk", "brew", "conda", "snap")
"""Programs that would change the host. NeMo Gym's gdpval installs LibreOffice with apt-get when it starts as root."""


class WarmPython:
    """The interpreter, until `close`."""

    def __init__(self, folder: Path) -> None:
        socket, own = folder / "warm.sock", Path(__file__).parent
        self.python = folder / "bin" / "warm-python"
        self.python.parent.mkdir()
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{own / "warm_call.py"}" "{socket}" "$@"\n')
        self.python.chmod(0o755)
        self._log = (folder / "warm-python.log").open("wb")
        command, env = [str(PYTHON), str(own / "warm_forks.py"), str(socket)], server_environment(folder)
        streams: Any = {"stdin": subprocess.PIPE, "stdout": self._log, "stderr": self._log}
        self._process = subprocess.Popen(command, cwd=folder, env=env, start_new_session=True, **streams)
        end = time.monotonic() + START_LIMIT_S
        while not socket.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError(f"nemo_gym was not imported; see {self._log.name}")
            time.sleep(0.1)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=deadline_s())
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def server_environment(folder: Path) -> dict[str, str]:
    """Environment variables of NeMo Gym's servers: no downloads, no system packages, caches that end with the run."""
    kept = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    return {
        **kept,
        "PATH": f"{_without_installers(folder)}:{PYTHON.parent}:{kept.get('PATH', '')}",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "WANDB_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _without_installers(folder: Path) -> Path:
    """A folder for the front of PATH in which every installer of system packages fails."""
    guard = folder / "guard"
    guard.mkdir(exist_ok=True)
    for name in SYSTEM_INSTALLERS:
        program = guard / name
        if not program.exists():
            program.write_text(f"#!/bin/sh\necho '{name}: the comparison installs no system packages' >&2\nexit 1\n")
            program.chmod(0o755)
    return guard
