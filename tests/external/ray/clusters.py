"""Real Ray nodes and real ng_run commands for tests; each is ended by its process group.

`ray stop` is never used, because it ends every Ray process of the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.support.processes import alive, free_port, processes_with
from tests.support.stacks import AGENT, EXAMPLES, keys_of, read_rows
from tests.support.waiting import deadline_s, eventually

BIN = Path(sys.executable).parent
STACK = "configs/sokoban_builtin.yaml"
MODEL_ONLY = "responses_api_models/builtin_model/configs/builtin_model.yaml"
"""For tests in which one server is enough, because each is an actor that imports Ray."""
HEALTH_CHECKS = {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000"}
"""Ray misses a lost machine after 5 failed checks; by default, one is made every 3 s, and the first after 5 s."""
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
"""Otherwise, clusters would require the token of this user, if there is one. Any local `ray.init()` writes one."""
SCALED = "ROLLYARD_TEST_SCALED"
"""Variable of the processes of a cluster that scales: the name of its folder."""


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for Ray's sockets: their paths are limited to 107 characters, and pytest's tmp_path is too long."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Node:
    process: subprocess.Popen[bytes]
    address: str
    """HOST:PORT of the cluster."""

    @classmethod
    @contextlib.contextmanager
    def head(
        cls, folder: Path, ip: str, prefix: Sequence[str] = (), *more: str, environ: Mapping[str, str] | None = None
    ) -> Iterator[Node]:
        """Start the first node of a new cluster. `environ`: variables instead of those of a usual test."""
        port = free_port()
        # Without the processes that scale a cluster and that collect logs, which no test uses.
        options = ["--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false", "--no-monitor"]
        options += more
        with cls._started(folder / "head.out", f"{ip}:{port}", ip, [*prefix], options, environ) as node:
            yield node

    @classmethod
    @contextlib.contextmanager
    def scaling_head(cls, folder: Path, worker_cpus: int, max_workers: int) -> Iterator[Node]:
        """Start the first node of a cluster without CPUs, to which Ray's autoscaler adds nodes on this machine."""
        address = f"127.0.0.1:{free_port()}"
        kinds = {
            "head": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": {"CPU": worker_cpus}, "node_config": {}, "max_workers": max_workers},
        }
        own = {"type": "fake_multinode", "gcs_address": address, "fake_head_node": True, "disable_node_updaters": True}
        config = {"cluster_name": "fake", "max_workers": max_workers, "idle_timeout_minutes": 5, "provider": own}
        config |= {"available_node_types": kinds, "head_node_type": "head", "auth": {"ssh_user": "root"}}
        commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
        config |= {f"{name}_commands": [] for name in commands}
        config |= {"file_mounts": {}, "cluster_synced_files": [], "rsync_exclude": [], "rsync_filter": []}
        config |= {"file_mounts_sync_continuously": False, "docker": {}, "upscaling_speed": 9999}
        (folder / "scaling.json").write_bytes(orjson.dumps(config))
        options = ["--head", f"--port={address.partition(':')[2]}", f"--temp-dir={folder}", "--num-cpus=0"]
        options += ["--include-dashboard=false", f"--autoscaling-config={folder / 'scaling.json'}"]
        environ = {**NO_TOKEN, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", SCALED: folder.name}
        try:
            with cls._started(folder / "head.out", address, "127.0.0.1", [], options, environ) as node:
                yield node
        finally:
            for pid in list(processes_with(SCALED, folder.name)):  # the added nodes, which no command ends
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    @classmethod
    @contextlib.contextmanager
    def member(cls, folder: Path, head: Node, ip: str, prefix: Sequence[str] = (), *more: str) -> Iterator[Node]:
        options = [f"--address={head.address}", *more]
        with cls._started(folder / f"{ip}.out", head.address, ip, [*prefix], options) as node:
            yield node

    @classmethod
    @contextlib.contextmanager
    def _started(
        cls,
        output: Path,
        address: str,
        ip: str,
        prefix: list[str],
        options: list[str],
        environ: Mapping[str, str] | None = None,
    ) -> Iterator[Node]:
        command = [*prefix, str(BIN / "ray"), "start", "--block", f"--node-ip-address={ip}"]
        command += ["--num-cpus=1", "--object-store-memory=78643200", "--disable-usage-stats", "--min-worker-port=0"]
        command += ["--max-worker-port=0", "--dashboard-agent-listen-port=0", "--metrics-export-port=0"]
        command += ["--include-log-monitor=false", *options]
        environ = {**os.environ, **({**HEALTH_CHECKS, **NO_TOKEN} if environ is None else environ)}
        with output.open("wb") as file:
            process = subprocess.Popen(command, env=environ, stdout=file, stderr=file, start_new_session=True)
        try:

            def started() -> bool:
                assert process.poll() is None, output.read_text()
                return "Ray runtime started" in output.read_text()

            eventually("a Ray node", started)
            yield cls(process, address)
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> None:
    if process.poll() is None:
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(deadline_s())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Run:
    """One ng_run on a Ray cluster in its own folder; ended with the block."""

    def __init__(
        self,
        folder: Path,
        address: str,
        *overrides: str,
        config: str = STACK,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.prefix = list(prefix)
        self.environ = {name: value for name, value in os.environ.items() if name != "ROLLYARD_TOKEN"}
        self.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), **(NO_TOKEN if environ is None else environ)}
        self._output = folder / "ng_run.out"
        command = [f"+config_paths=[{config}]", f"+ray_head_node_address={address}", "+head_port=0"]
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(
                [*prefix, str(BIN / "ng_run"), *command, *overrides],
                cwd=folder,
                env=self.environ,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._pids: set[int] = set()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        end_group(self.process, signal.SIGINT)

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until_printed(self, text: str) -> None:

        def printed() -> bool:
            assert self.process.poll() is None, self.output
            return text in self.output

        eventually(text, printed)

    def until_ready(self) -> Run:
        self.until_printed("servers ready!")
        self.instances()
        return self

    def ended(self) -> int:
        return self.process.wait(deadline_s())

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, str(BIN / name), *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=deadline_s(),
            check=False,
        )

    @contextlib.contextmanager
    def collecting(self, output: Path, num_repeats: int) -> Iterator[None]:
        """Collect the example rows meanwhile. After the block, waits for the end, which must be a complete output."""
        given = (f"+agent_name={AGENT}", f"+input_jsonl_fpath={EXAMPLES}", f"+output_jsonl_fpath={output}")
        more = (f"+num_repeats={num_repeats}", "+responses_create_params.temperature=0.8")
        command = [*self.prefix, str(BIN / "ng_collect_rollouts"), *given, *more]
        log = output.with_suffix(".log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environ, stdout=file, stderr=file, start_new_session=True
            )
        try:
            eventually(
                "the first rollout", lambda: process.poll() is not None or (output.is_file() and output.stat().st_size)
            )
            yield
            assert process.wait(deadline_s()) == 0, log.read_text()[-4000:]
        finally:
            end_group(process)
        tasks = len(read_rows(EXAMPLES))
        expected = [(task, repeat) for task in range(tasks) for repeat in range(num_repeats)]
        assert sorted(keys_of(read_rows(output))) == expected

    def instances(self) -> list[dict[str, Any]]:
        """The instances that ng_status lists; empty if it fails."""
        done = self.command("ng_status", "+json=true")
        instances: list[dict[str, Any]] = orjson.loads(done.stdout) if done.stdout.startswith("[") else []
        self._pids.update(instance["pid"] for instance in instances)
        return instances

    def server(self, name: str) -> dict[str, Any]:
        (instance,) = [instance for instance in self.instances() if instance["server_name"] == name]
        return instance

    def log(self, title: str) -> str:
        (path,) = self.folder.glob(f".rollyard/runs/*/logs/{title}.log")
        return path.read_text()

    def head_file(self) -> Path:
        (path,) = self.folder.glob(".rollyard/runs/*/head.json")
        return path

    def left(self) -> list[int]:
        """Running server processes of this run, including restarted ones."""
        return [pid for pid in self._pids if "rollyard.services.runtime.serve" in command_of(pid) and alive(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
