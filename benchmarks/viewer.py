"""ng_viewer on 3,200 rollouts of 100 MB and on 1,000,000: time to the first rows, CPU, memory, response time of lists.

To limit disk usage, each of the 1,000,000 rows has 1 kB (1.1 GB in the temporary folder); 10 kB with --full (10 GB).
Files are in the page cache. The second start reuses the index that the first one saved.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks import profile
from benchmarks.commands import COMMANDS, TIMEOUT_S, BenchmarkError
from benchmarks.processes import PROC, TICKS, cpu_s, rss_mb
from benchmarks.tables import table, verdict

EVERY_S = 0.05
REQUESTS = 60
SORTS = ("task", "reward", "-reward", "-tool_calls", "seconds", "end")


@dataclass(frozen=True)
class Case:
    """A file to open, with limits on CPU time and memory. Wall time has no limit: it depends on other processes."""

    title: str
    rows: int
    row_bytes: int
    max_cpu_s: float
    max_second_cpu_s: float
    max_mb: float
    max_request_ms: float


SMALL = Case("3,200 rollouts, 100 MB", 3_200, 31_000, 3.0, 3.0, 150.0, 10.0)
CASES = (SMALL, Case("1,000,000 rollouts", 1_000_000, 0, 40.0, 4.0, 700.0, 40.0))
FULL = (SMALL, Case("1,000,000 rollouts, 10 GB", 1_000_000, 10_000, 150.0, 4.0, 700.0, 40.0))
QUICK = (SMALL, Case("20,000 rollouts", 20_000, 0, 4.0, 3.0, 150.0, 10.0))


def rollouts(case: Case) -> Iterator[bytes]:
    """Yield lines of at least `case.row_bytes` bytes."""
    for line in profile.rollouts(profile.Case(case.title, case.rows, False, 0.0, 0.0)):
        padding = max(case.row_bytes - len(line), 0)
        yield line if not padding else line[:-2] + b',"padding":"' + b"x" * padding + b'"}\n'


@dataclass
class Startup:
    """The times and resource usage of one start."""

    page_s: float = 0.0
    """From the command to the page and the first response."""
    rows_s: float = 0.0
    """From the command to the first rollouts."""
    all_s: float = 0.0
    """From the command to all rollouts."""
    cpu_s: float = 0.0
    """CPU time of all processes until then."""
    peak_mb: float = 0.0


class Viewer:
    """A running ng_viewer."""

    def __init__(self, path: Path) -> None:
        self._began = time.monotonic()
        command = [str(COMMANDS / "ng_viewer"), f"+jsonl_fpath={path}", "+port=0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._url = self.process.stdout.readline().strip()

    def get(self, path: str) -> bytes:
        """Return the body of the response."""
        with urllib.request.urlopen(self._url + path, timeout=TIMEOUT_S) as response:
            body: bytes = response.read()
            return body

    def overview(self) -> dict[str, Any]:
        """Return the overview of the run, which contains the reading progress."""
        found: dict[str, Any] = orjson.loads(self.get("api/overview"))["runs"][0]
        return found

    def await_all(self, case: Case) -> Startup:
        """Wait until all rollouts are shown."""
        startup = Startup()
        self.get("")
        while True:
            overview = self.overview()
            passed = time.monotonic() - self._began
            startup.page_s = startup.page_s or passed
            startup.rows_s = startup.rows_s or (passed if overview["measured"] else 0.0)
            startup.peak_mb, startup.cpu_s = max(startup.peak_mb, self.memory_mb()), max(startup.cpu_s, self._cpu_s())
            if overview["measured"] == case.rows:
                break
            if overview["error"] or self.process.poll() is not None:
                raise BenchmarkError(f"ng_viewer: {overview}")
            time.sleep(EVERY_S)
        startup.all_s = passed
        return startup

    def memory_mb(self) -> float:
        """Return the RSS of all its processes."""
        try:
            return sum(map(rss_mb, (self.process.pid, *self._readers())))
        except (OSError, IndexError):
            return 0.0

    def request_ms(self) -> float:
        """Return the CPU milliseconds per list request; some requests repeat earlier ones."""
        rng = random.Random(0)
        before = cpu_s(self.process.pid)
        for _ in range(REQUESTS):
            query = f"sort={rng.choice(SORTS)}&min_reward={rng.randrange(-2, 8)}&start={rng.randrange(5000)}"
            self.get(f"api/runs/0/rollouts?{query}&limit=100")
        return (cpu_s(self.process.pid) - before) / REQUESTS * 1000

    def search(self) -> float:
        """Return the seconds until every row was searched."""
        started = time.monotonic()
        while orjson.loads(self.get("api/runs/0/rollouts?q=max_steps&limit=1"))["searched"] < 1:
            pass
        return time.monotonic() - started

    def stop(self) -> None:
        """Stop it as Ctrl-C does; this saves the index."""
        self.process.send_signal(signal.SIGINT)
        if self.process.wait(TIMEOUT_S) != 0:
            raise BenchmarkError(f"ng_viewer exited with {self.process.returncode}")

    def _readers(self) -> list[int]:
        """Return the child processes of all threads."""
        tasks = (PROC / str(self.process.pid) / "task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def _cpu_s(self) -> float:
        """Return the CPU seconds of the process and its children, including exited ones."""
        fields = (PROC / str(self.process.pid) / "stat").read_text().rpartition(")")[2].split()
        own = sum(map(int, fields[11:15])) / TICKS
        try:
            return own + sum(map(cpu_s, self._readers()))
        except (OSError, IndexError):
            return own


def measure(case: Case, folder: Path) -> tuple[list[list[object]], list[object]]:
    """Open the file twice; return the rows of two tables, starts and list requests."""
    path = folder / "rollouts.jsonl"
    with path.open("wb") as file:
        file.writelines(rollouts(case))
    megabytes = path.stat().st_size / 1e6
    starts: list[list[object]] = []
    for start, limit in (("first", case.max_cpu_s), ("second", case.max_second_cpu_s)):
        viewer = Viewer(path)
        try:
            startup = viewer.await_all(case)
            request_ms, search_s, peak = viewer.request_ms(), viewer.search(), max(startup.peak_mb, viewer.memory_mb())
        finally:
            viewer.stop()
        cpu = [startup.cpu_s, f"<={limit:g}", verdict(startup.cpu_s <= limit)]
        memory = [peak, f"<={case.max_mb:g}", verdict(peak <= case.max_mb)]
        starts.append([f"{case.title}, {start}", startup.page_s, startup.rows_s, startup.all_s, *cpu, *memory])
    requests = [
        case.title,
        request_ms,
        f"<={case.max_request_ms:g}",
        verdict(request_ms <= case.max_request_ms),
        megabytes / search_s,
    ]
    for left in folder.iterdir():
        left.unlink()
    return starts, requests


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: 20,000 rollouts instead of 1,000,000")
    parser.add_argument("--full", action="store_true", help="10 kB per row: 10 GB in the temporary folder")
    options = parser.parse_args(arguments)
    cases = QUICK if options.quick else FULL if options.full else CASES
    with tempfile.TemporaryDirectory() as temporary:
        measured = [measure(case, Path(temporary)) for case in cases]
    starts = [line for lines, _ in measured for line in lines]
    head = ["start", "page s", "rows s", "all s", "CPU s", "target", "", "RSS MB", "target", ""]
    table("ng_viewer: time to the page, to the first rollouts, and to all rollouts", head, starts)
    head = ["100 rows, sorted and filtered", "CPU ms", "target", "", "search MB/s"]
    table("List requests", head, [line for _, line in measured])


if __name__ == "__main__":
    main()
