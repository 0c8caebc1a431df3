"""An interpreter that has imported nemo_gym and runs each program in a fork of itself.

Importing nemo_gym takes ten seconds of CPU time, and the table starts more than two hundred of its programs.
`WarmPython` starts such an interpreter, and writes a program `warm-python` that runs a script in a fork: with the
arguments, the environment variables, the working directory and the standard streams of whoever calls it. The call ends
with the fork, and the fork with the call, even if that is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.external.nemo_gym.compatibility.catalog import PYTHON, ROOT, VENV
from tests.support.waiting import deadline_s

START_LIMIT_S = 300.0


class WarmPython:
    """The interpreter, until `close`."""

    def __init__(self, folder: Path, writable: Path) -> None:
        """`folder`: for its socket and log. `writable`: the only other folder that programs can change."""
        socket, own = folder / "warm.sock", Path(__file__).parent
        self.python = folder / "bin" / "warm-python"
        self.python.parent.mkdir()
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{own / "warm_call.py"}" "{socket}" "$@"\n')
        self.python.chmod(0o755)
        self._log = (folder / "warm-python.log").open("wb")
        command = [*box(folder, writable, VENV), str(PYTHON), str(own / "warm_forks.py"), str(socket)]
        env = server_environment(folder)
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


def box(*writable: Path) -> list[str]:
    """The command line of bubblewrap, before a program that can change nothing on this host but these folders.

    Environments run programs that a model wrote, set up repositories in `/testbed`, and install packages when they run
    as root. Their root folder is an empty file system into which this host's folders are mounted.
    """
    if shutil.which("bwrap") is None:
        raise RuntimeError("NeMo Gym's environments run in bubblewrap: apt-get install bubblewrap")
    mounted: list[str] = []
    for path in sorted(Path("/").iterdir()):
        if path.is_symlink():
            mounted += ["--symlink", str(path.readlink()), str(path)]
        elif path.name not in ("dev", "proc", "sys", "tmp"):
            mounted += ["--ro-bind", str(path), str(path)]
    own = [argument for path in writable for argument in ("--bind", str(path), str(path))]
    fresh = ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", str(Path.home())]
    needed = [argument for path in (PYTHON.resolve().parents[1], ROOT) for argument in ("--ro-bind", path, path)]
    return ["bwrap", "--die-with-parent", "--unshare-pid", *mounted, *fresh, *map(str, needed), *own]


def server_environment(folder: Path, packages: Sequence[Path] = ()) -> dict[str, str]:
    """Environment variables of NeMo Gym's servers: no downloads, and caches in `folder`."""
    kept = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    return {
        **kept,
        "PATH": f"{PYTHON.parent}:{kept.get('PATH', '')}",
        "PYTHONPATH": ":".join(map(str, packages)),
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "PIP_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "WANDB_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "240",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
