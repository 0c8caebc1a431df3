"""Runs the user-facing commands as child processes in separate folders, and measures their resource usage."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson
from omegaconf import OmegaConf

from benchmarks.processes import cpu_s

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = Path(sys.executable).parent
TIMEOUT_S = 120.0
_serials = itertools.count()

Config = Mapping[str, Any]


class BenchmarkError(Exception):
    """A command failed, so the measurement is invalid."""


@dataclass(frozen=True)
class ModelEndpoint:
    """A running endpoint with fixed responses."""

    url: str
    pid: int

    def stats(self) -> tuple[int, float]:
        """Return the number of turns served and the CPU seconds used since the start."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=30) as response:
            stats = orjson.loads(response.read())
        return stats["turns"], stats["cpu_s"]


@dataclass(frozen=True)
class Run:
    """A running stack, started by ng_run."""

    folder: Path
    pid: int
    pids: Mapping[str, int]
    """Server name, with a number if it has replicas -> process id; `head` is ng_run itself. With +colocate=true all ids
    are the same."""
    urls: Mapping[str, str]
    """Server name -> base URL, excluding the head."""
    ready_s: float
    """Time from the command to `All n / n servers ready!`."""
    commands: Path
    """The folder of the commands that run it."""
    prefix: Sequence[str] = ()
    """A program that runs the commands, such as `ip netns exec NAME`."""

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds used so far, by process; with +colocate=true of the only one, as `servers`."""
        if len(set(self.pids.values())) == 1:
            return {"servers": cpu_s(self.pid)}
        return {name: cpu_s(pid) for name, pid in self.pids.items()}

    def sessions_left(self, within_s: float = 10.0) -> int:
        """Return the number of open sessions, 0 as soon as there is none."""
        until = time.monotonic() + within_s
        while True:
            servers = _servers(self.folder, self.commands, self.prefix).values()
            count = sum(int(server["sessions"]) for server in servers)
            if not count or time.monotonic() > until:
                return count


@dataclass(frozen=True)
class CollectionResult:
    """Resource usage and throughput of one ng_collect_rollouts."""

    cpu_s: float
    rate: float
    """Rollouts per second, as reported by the command."""
    wall_s: float
    measured: int


@dataclass
class Collection:
    """A running ng_collect_rollouts; `finish` waits for it."""

    process: subprocess.Popen[bytes]
    output: Path
    started: float = field(default_factory=time.monotonic)

    def finish(self) -> CollectionResult:
        """Wait for the command. Raises BenchmarkError with the end of its output if it failed."""
        _, status, used = os.wait4(self.process.pid, 0)
        wall = time.monotonic() - self.started
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            raise BenchmarkError(f"ng_collect_rollouts exited with {self.process.returncode}:\n{_tail(self._log)}")
        report = self.status()
        return CollectionResult(used.ru_utime + used.ru_stime, report["rollouts_per_s"], wall, report["measured"])

    def status(self) -> dict[str, Any]:
        """Return the status file; empty until it exists."""
        path = self.output.with_name(f"{self.output.stem}_status.json")
        found: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
        return found

    @property
    def _log(self) -> Path:
        return self.output.with_suffix(".log")


@contextlib.contextmanager
def installed(revision: str) -> Iterator[Path]:
    """Check out another commit, install it with its own `make .venv/.dev`, and yield the folder of its commands.

    Raises BenchmarkError.
    """
    known = ["git", "-C", str(ROOT), "cat-file", "-e", f"{revision}^{{commit}}"]
    if subprocess.run(known, capture_output=True, check=False).returncode != 0:
        raise BenchmarkError(f"the commit {revision} is not in {ROOT}; in a shallow clone: git fetch --unshallow")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        _run_or_raise([*git, "add", "--quiet", "--detach", str(folder), revision], ROOT)
        try:
            _run_or_raise(["make", f"PYTHON={sys.executable}", ".venv/.dev"], folder)
            yield folder / ".venv" / "bin"
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def model_endpoint(
    *options: str, latency_ms: float = 0.0, turns: int = 6, host: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> contextlib.AbstractContextManager[ModelEndpoint]:
    """Run the scripted model in a separate process."""
    given = ("--latency-ms", str(latency_ms), "--turns", str(turns), "--host", host, *options)
    return endpoint("benchmarks.scripted_model", *given, host=host, prefix=prefix)


@contextlib.contextmanager
def endpoint(
    program: str, *options: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> Iterator[ModelEndpoint]:
    """Run a module that prints its port first in a separate process."""
    command = [*prefix, sys.executable, "-m", program, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield ModelEndpoint(f"http://{host}:{port}", process.pid)
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def stack(
    folder: Path, config: Config, *options: str, commands: Path = COMMANDS, prefix: Sequence[str] = ()
) -> Iterator[Run]:
    """Run `ng_run` with `config` in a new folder below `folder`; yield when ready, and stop it as Ctrl-C does.

    `commands`: the folder of the commands to use; `prefix`: a program that runs them.
    """
    run_folder = folder / f"run{next(_serials)}"
    run_folder.mkdir()
    (run_folder / "run.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
    command = [*prefix, str(commands / "ng_run"), "+config_paths=[run.yaml]", "+head_port=0", *options]
    log = run_folder / "ng_run.log"
    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=run_folder, stdout=output, stderr=output, env=environment())
    try:
        _await_ready(process, log)
        ready_s = time.monotonic() - started
        servers = _servers(run_folder, commands, prefix)
        pids = {name: server["pid"] for name, server in servers.items()}
        urls = {name: server["url"] for name, server in servers.items()}
        yield Run(run_folder, process.pid, {"head": process.pid, **pids}, urls, ready_s, commands, prefix)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise BenchmarkError(f"ng_run exited with {process.returncode}:\n{_tail(log)}")


def collect(
    run: Run, agent: str, rows: Path, *, parallel: int | str, repeats: int, limit: int | None = None
) -> Collection:
    """Start an ng_collect_rollouts that writes to a new file in the run's folder."""
    output = run.folder / f"rollouts{next(_serials)}.jsonl"
    command = [
        *run.prefix,
        str(run.commands / "ng_collect_rollouts"),
        f"+agent_name={agent}",
        f"+input_jsonl_fpath={rows}",
    ]
    command += [f"+output_jsonl_fpath={output}", f"+num_repeats={repeats}", f"+num_samples_in_parallel={parallel}"]
    command += ["+responses_create_params.temperature=0.8", *([f"+limit={limit}"] if limit else [])]
    with output.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, cwd=run.folder, stdout=log, stderr=log, env=environment())
    return Collection(process, output)


def _run_or_raise(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} exited with {done.returncode}: {done.stderr.strip()[-3000:]}")


def cpu_of(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> float:
    """Run a command to its end; return the CPU seconds of it and its children. Raises BenchmarkError if it failed."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=variables or environment())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            log.seek(0)
            raise BenchmarkError(f"{' '.join(command)} exited with {process.returncode}:\n{_tail(log)}")
    return used.ru_utime + used.ru_stime


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not re.search(rb"All (\d+) / \1 servers ready!", log.read_bytes()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchmarkError(f"ng_run did not become ready:\n{_tail(log)}")
        time.sleep(0.01)


def _servers(folder: Path, commands: Path, prefix: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    command = [*prefix, str(commands / "ng_status"), "+json=true"]
    status = subprocess.run(command, cwd=folder, capture_output=True, env=environment(), check=True, timeout=TIMEOUT_S)
    servers: dict[str, list[dict[str, Any]]] = {}
    for server in orjson.loads(status.stdout):
        servers.setdefault(server["server_name"], []).append(server)
    return {
        name if len(replicas) == 1 else f"{name}[{number}]": server
        for name, replicas in servers.items()
        for number, server in enumerate(replicas)
    }


def environment() -> dict[str, str]:
    # With it, every process would compile the modules of an editable checkout again.
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _tail(log: Path | IO[bytes]) -> str:
    text = log.read_bytes() if isinstance(log, Path) else log.read()
    return text.decode("utf-8", "replace")[-3000:]
