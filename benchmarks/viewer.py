"""ng_viewer on 3,200, 100,000 and 1,000,000 rollouts: time to the first list, CPU, memory, response time of lists.

To limit disk usage, each of the 1,000,000 rows has 1 kB (1.1 GB in the temporary folder); 10 kB with --full (10 GB).
`--only 100,000` measures the cases whose titles begin so. Files are in the page cache. The second start reuses the
index that the first one saved. A series of steps has 100,000 rollouts in ten files.

A list is also sorted by, filtered by and counted over fields that the index does not contain: the file is read in the
background while the page polls. `slowest` is the longest of these requests, which must be short although the file is
being read; `decode s` is the time that one core needs to read and decode all rows.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from benchmarks import profile
from benchmarks.commands import COMMANDS, TIMEOUT_S, BenchmarkError, environment
from benchmarks.comparison import Figure, Measure, warmed_up
from benchmarks.processes import children, cpu_s, family_cpu_s, rss_mb
from benchmarks.tables import table, verdict
from rollyard.analysis.metrics.run_pair import TaskChanges
from rollyard.analysis.metrics.training_steps import StepSummary, TaskSeries
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.series import StepReader, files_as_series
from rollyard.records.jsonl import iter_jsonl, refuse

EVERY_S = 0.05
REQUESTS = 60
LIST = "api/runs/0/rollouts?limit=100"
POLL_S = 0.4
QUESTIONS = (
    ("sorted by a field", "rollouts?limit=100&sort=-response.usage.total_tokens"),
    ("two fields in an expression", "rollouts?limit=100&where=level_id > 10 and timings.seed_s < 1"),
    ("values of a field", "facet?key=truncated"),
)
STEPS = 10
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


MEDIUM = Case("100,000 rollouts, 1 GB", 100_000, 10_000, 16.0, 4.0, 300.0, 20.0)
SMALL = Case("3,200 rollouts, 100 MB", 3_200, 31_000, 3.0, 3.0, 150.0, 10.0)
CASES = (SMALL, MEDIUM, Case("1,000,000 rollouts", 1_000_000, 0, 40.0, 4.0, 700.0, 40.0))
FULL = (SMALL, MEDIUM, Case("1,000,000 rollouts, 10 GB", 1_000_000, 10_000, 150.0, 4.0, 700.0, 40.0))
QUICK = (Case("3,200 rollouts", 3_200, 0, 3.0, 3.0, 150.0, 10.0),)


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
    list_s: float = 0.0
    """From the command to the first list of 100 rollouts with their prompts and verdicts."""
    list_cpu_s: float = 0.0
    """CPU time of all processes until then: the time that it takes at least, whatever else the host does."""
    all_s: float = 0.0
    """From the command to all rollouts."""
    cpu_s: float = 0.0
    """CPU time of all processes until then."""
    peak_mb: float = 0.0


class Viewer:
    """A running ng_viewer."""

    def __init__(self, path: Path, commands: Path = COMMANDS) -> None:
        self._began = time.monotonic()
        command = [str(commands / "ng_viewer"), f"+jsonl_fpath={path}", "+port=0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
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
            if not startup.list_s and orjson.loads(self.get(LIST))["lines"]:
                startup.list_s, startup.list_cpu_s = time.monotonic() - self._began, self.cpu_s()
            startup.peak_mb, startup.cpu_s = max(startup.peak_mb, self.memory_mb()), max(startup.cpu_s, self.cpu_s())
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
            return sum(map(rss_mb, (self.process.pid, *children(self.process.pid))))
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

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process and its children, including exited ones."""
        return family_cpu_s(self.process.pid)


@contextmanager
def compared(commands: Path, folder: Path) -> Iterator[Measure]:
    """Yield what measures the CPU seconds until the first list of 3,200 rollouts."""
    case = Case("", 3_200, 0, 0.0, 0.0, 0.0, 0.0)
    path = folder / "rollouts.jsonl"
    with path.open("wb") as file:
        file.writelines(rollouts(case))

    def once(number: int) -> dict[str, float]:
        viewer = Viewer(path, commands)
        try:
            return {"ng_viewer": viewer.await_all(case).list_cpu_s}
        finally:
            viewer.stop()

    yield warmed_up(once)


FIGURE = Figure("ng_viewer to its first list, 3,200 rollouts", "CPU s", compared)
Rows = list[list[object]]


def measure(case: Case, folder: Path) -> tuple[Rows, Rows, Rows]:
    """Open the file twice; return the rows of three tables, starts, list requests and fields."""
    path = folder / "rollouts.jsonl"
    with path.open("wb") as file:
        file.writelines(rollouts(case))
    megabytes = path.stat().st_size / 1e6
    starts: Rows = []
    fields: Rows = []
    for start, limit in (("first", case.max_cpu_s), ("second", case.max_second_cpu_s)):
        viewer = Viewer(path)
        try:
            startup = viewer.await_all(case)
            request_ms, search_s = viewer.request_ms(), viewer.search()
            fields = fields or measure_fields(case.title, path, viewer)
            peak = max(startup.peak_mb, viewer.memory_mb())
        finally:
            viewer.stop()
        cpu = [startup.cpu_s, f"<={limit:g}", verdict(startup.cpu_s <= limit)]
        memory = [peak, f"<={case.max_mb:g}", verdict(peak <= case.max_mb)]
        starts.append(
            [f"{case.title}, {start}", startup.page_s, startup.list_s, startup.list_cpu_s, startup.all_s, *cpu, *memory]
        )
    requests = [
        case.title,
        request_ms,
        f"<={case.max_request_ms:g}",
        verdict(request_ms <= case.max_request_ms),
        megabytes / search_s,
    ]
    for left in folder.iterdir():
        left.unlink()
    return starts, [requests], fields


def measure_fields(title: str, path: Path, viewer: Viewer) -> Rows:
    """Return the rows of a table, one for each question."""
    decode_s = _cpu_s(lambda: sum(1 for _ in iter_jsonl(path, refuse(path))))
    return [[f"{title}, {name}", *_poll(request, viewer), decode_s] for name, request in QUESTIONS]


def _poll(request: str, viewer: Viewer) -> list[object]:
    started, before, slowest, requests = time.monotonic(), viewer.cpu_s(), 0.0, 0
    path = f"api/runs/0/{request}".replace(" ", "%20").replace(">", "%3E").replace("<", "%3C")
    while True:
        asked = time.monotonic()
        searched = orjson.loads(viewer.get(path))["searched"]
        slowest, requests = max(slowest, time.monotonic() - asked), requests + 1
        if searched == 1:
            return [time.monotonic() - started, viewer.cpu_s() - before, requests, 1000 * slowest]
        time.sleep(POLL_S)


def measure_series(rows: int, folder: Path) -> list[object]:
    """Read `rows` rollouts in 10 files, and return the row of a table."""
    files = []
    for step in range(STEPS):
        path = folder / f"step_{step}.jsonl"
        with path.open("wb") as file:
            lines = profile.rollouts(profile.Case("", rows // STEPS, False, 0.0, 0.0))
            file.writelines(_of_step(line, step) for line in lines)
        files.append((path.stem, path))
    [steps] = files_as_series(files, range(STEPS))().values()
    reader = StepReader()
    reader.progress(steps)
    read_s = _cpu_s(reader.wait)
    summaries: list[StepSummary] = list(reader.progress(steps).summaries.values())
    pair_s = _cpu_s(lambda: TaskSeries.of(summaries).order("change", TaskSeries.of(summaries).mean))
    index = FileIndex(files)
    index.read_through()
    runs = [index.find(number).numbers()[1] for number in (0, STEPS - 1)]
    change_s = _cpu_s(lambda: TaskChanges.of(*runs))
    for left in folder.iterdir():
        left.unlink()
    return [f"{rows:,} rollouts, {STEPS} steps", read_s, 1000 * pair_s, 1000 * change_s]


def _of_step(line: bytes, step: int) -> bytes:
    """Return the row with a content key, and solved more often at later steps."""
    row = orjson.loads(line)
    task, repeat = row["_ng_task_index"], row["_ng_rollout_index"]
    more = {"_ng_task_key": f"{task + 1:016x}", "success": (7 * task + 3 * repeat + task * step) % 11 < 3 + step // 2}
    return orjson.dumps({**row, **more}) + b"\n"


def _cpu_s(make: Callable[[], object]) -> float:
    started = time.process_time()
    make()
    return time.process_time() - started


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: few and short rollouts")
    parser.add_argument("--full", action="store_true", help="10 kB per row: 10 GB in the temporary folder")
    parser.add_argument("--only", default="", metavar="TITLE", help="only cases whose titles begin so, and no series")
    options = parser.parse_args(arguments)
    cases = [
        case
        for case in (QUICK if options.quick else FULL if options.full else CASES)
        if case.title.startswith(options.only)
    ]
    with tempfile.TemporaryDirectory() as temporary:
        measured = [measure(case, Path(temporary)) for case in cases]
        series = None if options.only else measure_series(10_000 if options.quick else 100_000, Path(temporary))
    starts, requests, fields = (list(chain.from_iterable(rows)) for rows in zip(*measured, strict=True))
    head = ["start", "page s", "list s", "(CPU s)", "all s", "CPU s", "target", "", "RSS MB", "target", ""]
    table("ng_viewer: time to the page, to the first list, and to all rollouts", head, starts)
    head = ["100 rows, sorted and filtered", "CPU ms", "target", "", "search MB/s"]
    table("List requests", head, requests)
    head = ["fields that are not in the index", "s", "CPU s", "requests", "slowest ms", "decode s"]
    table("Fields", head, fields)
    if series is not None:
        table("Series of steps", ["CPU time", "read s", "pair tasks ms", "learned and forgotten ms"], [series])


if __name__ == "__main__":
    main()
