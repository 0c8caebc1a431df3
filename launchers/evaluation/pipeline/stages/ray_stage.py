"""Starts a Ray cluster on this host for an evaluation whose model needs several GPUs."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.launchers.evaluation.pipeline.stages.running_stages import RunningStages
from rollyard.records.errors import RunError
from rollyard.services.runtime.programs.program import Program
from rollyard.services.runtime.programs.program_errors import raise_for, tail

READY_TIMEOUT_S = 180.0
POLL_S = 0.2
_READY = "Ray runtime started"


async def start_ray(plan: EvalPlan, environ: Mapping[str, str], stages: RunningStages) -> str:
    """Start the head of a new cluster and return its address, HOST:PORT."""
    port, dashboard = _free_ports(2)
    folder = tempfile.mkdtemp(prefix="ng-ray-")  # short, because Ray's sockets are in it
    command = [
        *(*plan.ray_command, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"),
        *(f"--dashboard-port={dashboard}", "--include-dashboard=false"),
        *("--disable-usage-stats", f"--temp-dir={folder}"),
    ]
    process = await Program.start(
        "Ray", command, plan.folder.ray_log, {**environ, "RAY_TMPDIR": folder}, plan.here, " ".join(command)
    )
    process.remove_at_end(Path(folder))
    stages.add(process)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_TIMEOUT_S
    while _READY not in process.printed():
        await asyncio.wait({process.ended}, timeout=POLL_S)
        if not process.running:
            raise_for(process)
        if loop.time() > deadline:
            raise RunError(f"Ray was not ready within {READY_TIMEOUT_S:g} s\n{tail(process)}")
    return f"127.0.0.1:{port}"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        found = [sockets.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [int(sock.getsockname()[1]) for sock in found]
