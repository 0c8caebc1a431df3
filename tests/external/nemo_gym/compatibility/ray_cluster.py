"""One Ray cluster for the few environments that use Ray, because each would otherwise start its own.

Ray gives a cluster 30 seconds to start, which a busy host exceeds; so the start is tried again.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.external.nemo_gym.compatibility.catalog import PYTHON, Environment
from tests.external.nemo_gym.compatibility.processes import HOST, ServerProcess, free_port
from tests.external.nemo_gym.compatibility.warm_python import server_environment

ATTEMPTS = 4
START_LIMIT_S = 90.0
USES_RAY = re.compile(r"^\s*(?:import|from) ray\b", re.MULTILINE)


@contextlib.contextmanager
def ray_cluster(chosen: Iterable[Environment], folder: Path) -> Iterator[None]:
    """A cluster that the servers find by the variable RAY_ADDRESS, if one of the environments uses Ray."""
    if not any(map(uses_ray, chosen)):
        yield
        return
    process, address = _started(folder)
    os.environ["RAY_ADDRESS"] = address
    try:
        yield
    finally:
        del os.environ["RAY_ADDRESS"]
        process.stop()


def uses_ray(environment: Environment) -> bool:
    files = [path for path in environment.folder.rglob("*.py") if "tests" not in path.parts]
    return any(USES_RAY.search(path.read_text()) for path in files)


def _started(folder: Path) -> tuple[ServerProcess, str]:
    for attempt in range(ATTEMPTS):
        port, log = free_port(), folder / f"ray-{attempt}.log"
        command = [str(PYTHON.with_name("ray")), "start", "--head", "--block", f"--port={port}", "--num-cpus=4"]
        command += [f"--node-ip-address={HOST}", "--include-dashboard=false", f"--temp-dir=/tmp/ray-{os.getpid()}"]
        process = ServerProcess(command, folder, server_environment(folder), port, log)
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end and process.is_running():
            if "Ray runtime started" in log.read_text(errors="replace"):
                return process, f"{HOST}:{port}"
            time.sleep(0.2)
        process.stop()
    raise subprocess.SubprocessError(f"Ray did not start in {ATTEMPTS} attempts; see {folder}/ray-*.log")
