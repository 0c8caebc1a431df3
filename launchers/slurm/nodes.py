"""RayNodes: a Ray cluster on the nodes of one job, one job step for each node."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.launchers.slurm.client import SlurmClient
from rollyard.launchers.slurm.job import LOGS, JobSpec
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.terminal import plain_line
from rollyard.services.http.ray_address import ray_authentication

READY_S = 300.0
_HEAD_TRIES = 3
"""The head's port is chosen before it listens, so another program may take it."""
_POLL_S = 0.2
_STOP_S = 15.0
_STARTED = "Ray runtime started"


def authentication(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which all nodes and the command use the user's Ray token; containers have another home."""
    return ray_authentication(None, environment) if spec.container_runtime == "none" else {}


@dataclass
class RayNodes:
    """Starts Ray on every node of the job, and stops what it has started. `ray stop` would end other clusters, too."""

    folder: Path
    spec: JobSpec
    environment: Mapping[str, str]
    client: SlurmClient
    address: str = ""
    _steps: list[tuple[str, subprocess.Popen[bytes], Path, int]] = field(default_factory=list)
    _temporary: Path | None = None

    def __post_init__(self) -> None:
        own = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        self.environment = own | authentication(self.spec, self.environment)

    def start(self, stopped: Callable[[], bool], each_time: Callable[[], None]) -> None:
        """Start the head, then the other nodes, and wait until all have joined. Raises RunError otherwise.

        `stopped`: whether the job is being ended; `each_time` is called while waiting.
        """
        nodes = self.client.hosts(self.environment["SLURM_JOB_NODELIST"])
        cpus = cpus_per_node(self.environment.get("SLURM_JOB_CPUS_PER_NODE", ""), len(nodes))
        # Ray's sockets are below it, and their paths are limited to 107 characters.
        self._temporary = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        head, *others = nodes
        for last in (False,) * (_HEAD_TRIES - 1) + (True,):
            address = _resolve(self.client.node_address(head))
            with socket.socket() as sock:
                sock.bind(("", 0))
                port = int(sock.getsockname()[1])
            self.address = f"{address}:{port}"
            options = ["--head", f"--port={port}", f"--temp-dir={self._temporary}", "--include-dashboard=false"]
            self._start_node(head, address, cpus[0], options)
            try:
                self._wait(stopped, each_time)
                break
            except RunError:
                if last or stopped():
                    raise
                self._stop_steps()
        for node, count in zip(others, cpus[1:], strict=True):
            address = _resolve(self.client.node_address(node))
            self._start_node(node, address, count, [f"--address={self.address}"])
        self._wait(stopped, each_time)

    def _start_node(self, node: str, address: str, cpus: int | None, options: list[str]) -> None:
        installed = Path(sys.executable).with_name("ray")
        ray = str(installed) if self.spec.container_runtime == "none" and installed.exists() else "ray"
        command = [ray, "start", "--block", f"--node-ip-address={address}", f"--num-gpus={self.spec.gpus_per_node}"]
        command += ["--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0"]
        command += ["--dashboard-agent-listen-port=0", "--metrics-export-port=0", *options]
        if cpus is not None:
            command.append(f"--num-cpus={cpus}")
        log = self.folder / LOGS / f"ray-{self.environment.get('SLURM_JOB_ID', '')}-{node}.log"
        with log.open("ab") as file:
            offset = file.tell()
            process = subprocess.Popen(
                on_node(self.spec, node, cpus, command),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._steps.append((node, process, log, offset))

    def _wait(self, stopped: Callable[[], bool], each_time: Callable[[], None]) -> None:
        deadline = time.monotonic() + READY_S
        waiting = list(self._steps)
        while waiting:
            node, process, log, offset = waiting[0]
            with log.open("rb") as file:
                file.seek(offset)
                text = file.read().decode("utf-8", "replace")
            if _STARTED in text:
                waiting.pop(0)
                continue
            lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("srun: ")]
            last = plain_line(" | ".join((lines or text.split("\n"))[-2:])) or "no output"
            if process.poll() is not None:
                raise RunError(f"Ray did not start on node {node}: {last} (its log: {log})")
            if time.monotonic() >= deadline:
                raise RunError(f"Ray was not up on node {node} after {READY_S:g} s: {last} (its log: {log})")
            if stopped():
                raise RunError("the job was ended while Ray started")
            each_time()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop Ray on every node: SLURM ends the processes of a step when srun is told to stop."""
        self._stop_steps()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _stop_steps(self) -> None:
        for _, process, _, _ in reversed(self._steps):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for _, process, _, _ in self._steps:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()
            process.wait()
        self._steps.clear()


def cpus_per_node(text: str, nodes: int) -> list[int | None]:
    """Parse SLURM_JOB_CPUS_PER_NODE, such as `16(x2),8`. None for each node if it does not fit their number."""
    counts: list[int | None] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts if len(counts) == nodes else [None] * nodes


def _resolve(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


STEP_NAME = "rollyard-command"
_HELP_S = 60.0


def check_container(spec: JobSpec) -> None:
    if spec.container_runtime != "none" and not spec.container:
        raise OperatorError(f"container_runtime={spec.container_runtime} needs an image: set container")
    if spec.container_runtime == "pyxis" and (wrong := [mount for mount in spec.mounts if "," in mount]):
        raise OperatorError(f"mount {wrong[0]!r}: Pyxis separates mounts with commas, so a path cannot contain one")


def in_container(spec: JobSpec, node: str, cpus: int | None, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` on this node, in the job's container if it has one."""
    if spec.container_runtime == "pyxis":
        return on_node(spec, node, cpus, command, f"--job-name={STEP_NAME}")
    return [*_container(spec), *command]


def on_node(spec: JobSpec, node: str, cpus: int | None, command: Sequence[str], *options: str) -> list[str]:
    """Return the command line that runs `command` as a job step on one node of the job, in its container.

    `cpus`: the job's CPUs on that node. Without them, srun gives the step a single one.
    """
    step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--kill-on-bad-exit=1", *options]
    if cpus is not None:
        step.append(f"--cpus-per-task={cpus}")
    if spec.gpus_per_node:
        step.append(f"--gres=gpu:{spec.gpus_per_node}")
    return [*step, *_container(spec), *command]


def check_runtime(spec: JobSpec) -> None:
    """Raise RunError if this node lacks the program that runs the container."""
    program = {"pyxis": "srun", "apptainer": "apptainer"}.get(spec.container_runtime)
    if program is not None and shutil.which(program) is None:
        raise RunError(
            f"container_runtime={spec.container_runtime}: this node has no {program} in its PATH; "
            "choose a partition whose nodes have it, or set container_runtime=none"
        )
    if spec.container_runtime == "pyxis":
        shown = subprocess.run(["srun", "--help"], capture_output=True, text=True, check=False, timeout=_HELP_S)
        if "--container-image" not in shown.stdout + shown.stderr:
            raise RunError(
                "container_runtime=pyxis: srun on this node has no option --container-image, because the Pyxis plug-in "
                "is not installed; install it, or use container_runtime=apptainer or none"
            )


def _container(spec: JobSpec) -> list[str]:
    if spec.container_runtime == "pyxis":
        mounts = [f"--container-mounts={','.join(spec.mounts)}"] if spec.mounts else []
        return [f"--container-image={spec.container}", *mounts]
    if spec.container_runtime == "none":
        return []
    binds = [part for mount in spec.mounts for part in ("--bind", mount)]
    return ["apptainer", "exec", *(["--nv"] if spec.gpus_per_node else []), *binds, str(spec.container)]
