"""The commands that users type, as child processes in a folder of their own, and what they used of the machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
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
PATIENCE_S = 120.0
_serials = itertools.count()

Config = Mapping[str, Any]


class Broken(Exception):
    """A command did not do what it should; the measurement is void."""


@dataclass(frozen=True)
class Policy:
    """The scripted endpoint, while it runs."""

    url: str
    pid: int

    def stats(self) -> tuple[int, float]:
        """Turns answered and CPU seconds used since it began."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=30) as answer:
            stats = orjson.loads(answer.read())
        return stats["turns"], stats["cpu_s"]


@dataclass(frozen=True)
class Run:
    """A stack started by ng_run, while it runs."""

    folder: Path
    pid: int
    pids: Mapping[str, int]
    """Server name -> process; `head` is ng_run itself. Colocated, all are one process."""
    urls: Mapping[str, str]
    """Server name -> base URL, without the head's."""
    ready_s: float
    """From the command to `All n / n servers ready!`."""

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far by process; colocated, of the one: `servers`."""
        if len(set(self.pids.values())) == 1:
            return {"servers": cpu_s(self.pid)}
        return {name: cpu_s(pid) for name, pid in self.pids.items()}


@dataclass(frozen=True)
class Collected:
    """What one ng_collect_rollouts came to."""

    cpu_s: float
    rate: float
    """Rollouts a second, as the command itself reports."""
    wall_s: float
    measured: int


@dataclass
class Collection:
    """An ng_collect_rollouts that runs; `finish` waits for it."""

    process: subprocess.Popen[bytes]
    output: Path
    begun: float = field(default_factory=time.monotonic)

    def finish(self) -> Collected:
        """Wait. Raises Broken when it failed, with the end of what it printed."""
        _, status, used = os.wait4(self.process.pid, 0)
        wall = time.monotonic() - self.begun
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            raise Broken(f"ng_collect_rollouts ended with {self.process.returncode}:\n{_end_of(self._log)}")
        report = self.status()
        return Collected(used.ru_utime + used.ru_stime, report["rollouts_per_s"], wall, report["measured"])

    def status(self) -> dict[str, Any]:
        """The status file as it is now; empty before there is one."""
        path = self.output.with_name(f"{self.output.stem}_status.json")
        found: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
        return found

    @property
    def _log(self) -> Path:
        return self.output.with_suffix(".log")


def policy(*, latency_ms: float = 0.0, turns: int = 6) -> contextlib.AbstractContextManager[Policy]:
    """The scripted endpoint in a process of its own."""
    return endpoint("benchmarks.scripted_model", "--latency-ms", str(latency_ms), "--turns", str(turns))


@contextlib.contextmanager
def endpoint(program: str, *options: str) -> Iterator[Policy]:
    """A program of ours in a process of its own, which prints its port first."""
    process = subprocess.Popen([sys.executable, "-m", program, *options], stdout=subprocess.PIPE, env=_environment())
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Policy(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def stack(folder: Path, config: Config, *options: str) -> Iterator[Run]:
    """`ng_run` over `config` in a new folder below `folder`, ready; stopped as Ctrl-C stops it."""
    here = folder / f"run{next(_serials)}"
    here.mkdir()
    (here / "run.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
    command = [str(COMMANDS / "ng_run"), "+config_paths=[run.yaml]", "+head_port=0", *options]
    log = here / "ng_run.log"
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=here, stdout=output, stderr=output, env=_environment())
    try:
        _await_ready(process, log)
        ready_s = time.monotonic() - began
        servers = _servers(here)
        pids = {server["server_name"]: server["pid"] for server in servers}
        urls = {server["server_name"]: server["url"] for server in servers}
        yield Run(here, process.pid, {"head": process.pid, **pids}, urls, ready_s)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise Broken(f"ng_run ended with {process.returncode}:\n{_end_of(log)}")


def collect(run: Run, agent: str, rows: Path, *, parallel: int, repeats: int, limit: int | None = None) -> Collection:
    """Begin an ng_collect_rollouts into a new file of the run's folder."""
    output = run.folder / f"rollouts{next(_serials)}.jsonl"
    command = [str(COMMANDS / "ng_collect_rollouts"), f"+agent_name={agent}", f"+input_jsonl_fpath={rows}"]
    command += [f"+output_jsonl_fpath={output}", f"+num_repeats={repeats}", f"+num_samples_in_parallel={parallel}"]
    command += ["+responses_create_params.temperature=0.8", *([f"+limit={limit}"] if limit else [])]
    with output.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, cwd=run.folder, stdout=log, stderr=log, env=_environment())
    return Collection(process, output)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A data set."""
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not re.search(rb"All (\d+) / \1 servers ready!", log.read_bytes()):
        if process.poll() is not None or time.monotonic() > give_up:
            raise Broken(f"ng_run is not ready:\n{_end_of(log)}")
        time.sleep(0.01)


def _servers(here: Path) -> list[dict[str, Any]]:
    command = [str(COMMANDS / "ng_status"), "+json=true"]
    answer = subprocess.run(command, cwd=here, capture_output=True, env=_environment(), check=True, timeout=PATIENCE_S)
    listed: list[dict[str, Any]] = orjson.loads(answer.stdout)
    return listed


def _environment() -> dict[str, str]:
    return dict(os.environ)


def _end_of(log: Path | IO[bytes]) -> str:
    text = log.read_bytes() if isinstance(log, Path) else log.read()
    return text.decode("utf-8", "replace")[-3000:]
