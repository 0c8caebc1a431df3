"""ng_viewer on 3,200 rollouts of 100 MB and on 1,000,000: when it shows something, what that costs, how lists answer.

Rows of the million have 1 kB, to bound the disk (1.1 GB in the temporary folder); --full makes them 10 kB (10 GB).
Files are in the page cache. A second start finds the index that the first one left.
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
from benchmarks.commands import COMMANDS, PATIENCE_S, Broken
from benchmarks.processes import PROC, TICKS, cpu_s, rss_mb
from benchmarks.tables import table, verdict

EVERY_S = 0.05
ASKS = 60
SORTS = ("task", "reward", "-reward", "-tool_calls", "seconds", "end")


@dataclass(frozen=True)
class Case:
    """A file to open, and what that may take of the machine: CPU, because time tells who else uses it."""

    title: str
    rows: int
    row_bytes: int
    most_cpu_s: float
    most_again_cpu_s: float
    most_mb: float
    most_ask_ms: float


SMALL = Case("3,200 rollouts, 100 MB", 3_200, 31_000, 3.0, 3.0, 150.0, 10.0)
CASES = (SMALL, Case("1,000,000 rollouts", 1_000_000, 0, 40.0, 4.0, 700.0, 40.0))
FULL = (SMALL, Case("1,000,000 rollouts, 10 GB", 1_000_000, 10_000, 150.0, 4.0, 700.0, 40.0))
QUICK = (SMALL, Case("20,000 rollouts", 20_000, 0, 4.0, 3.0, 150.0, 10.0))


def rollouts(case: Case) -> Iterator[bytes]:
    """Lines of at least so many bytes."""
    for line in profile.rollouts(profile.Case(case.title, case.rows, False, 0.0, 0.0)):
        more = max(case.row_bytes - len(line), 0)
        yield line if not more else line[:-2] + b',"said":"' + b"x" * more + b'"}\n'


@dataclass
class Shown:
    """What one start came to."""

    page_s: float = 0.0
    """From the command to the page and the first answer."""
    rows_s: float = 0.0
    """To the first rollouts."""
    all_s: float = 0.0
    cpu_s: float = 0.0
    """Of all its processes, until everything could be seen."""
    peak_mb: float = 0.0


class Viewer:
    """An ng_viewer that runs."""

    def __init__(self, path: Path) -> None:
        self._began = time.monotonic()
        command = [str(COMMANDS / "ng_viewer"), f"+jsonl_fpath={path}", "+port=0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._url = self.process.stdout.readline().strip()

    def get(self, path: str) -> bytes:
        """An answer's body."""
        with urllib.request.urlopen(self._url + path, timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
            return body

    def opened(self) -> dict[str, Any]:
        """How far the file is read."""
        found: dict[str, Any] = orjson.loads(self.get("api/overview"))["runs"][0]
        return found

    def show(self, case: Case) -> Shown:
        """Wait until everything can be seen."""
        shown = Shown()
        self.get("")
        while True:
            opened = self.opened()
            passed = time.monotonic() - self._began
            shown.page_s = shown.page_s or passed
            shown.rows_s = shown.rows_s or (passed if opened["measured"] else 0.0)
            shown.peak_mb, shown.cpu_s = max(shown.peak_mb, self.memory_mb()), max(shown.cpu_s, self._cpu_s())
            if opened["measured"] == case.rows:
                break
            if opened["error"] or self.process.poll() is not None:
                raise Broken(f"ng_viewer: {opened}")
            time.sleep(EVERY_S)
        shown.all_s = passed
        return shown

    def memory_mb(self) -> float:
        """RSS of all its processes."""
        try:
            return sum(map(rss_mb, (self.process.pid, *self._readers())))
        except (OSError, IndexError):
            return 0.0

    def ask(self) -> float:
        """CPU in ms of a list, some of them seen before and some not."""
        dice = random.Random(0)
        before = cpu_s(self.process.pid)
        for _ in range(ASKS):
            asked = f"sort={dice.choice(SORTS)}&min_reward={dice.randrange(-2, 8)}&start={dice.randrange(5000)}"
            self.get(f"api/runs/0/rollouts?{asked}&limit=100")
        return (cpu_s(self.process.pid) - before) / ASKS * 1000

    def search(self) -> float:
        """Seconds until every row was searched."""
        began = time.monotonic()
        while orjson.loads(self.get("api/runs/0/rollouts?q=max_steps&limit=1"))["searched"] < 1:
            pass
        return time.monotonic() - began

    def end(self) -> None:
        """As Ctrl-C does; the index is saved."""
        self.process.send_signal(signal.SIGINT)
        if self.process.wait(PATIENCE_S) != 0:
            raise Broken(f"ng_viewer ended with {self.process.returncode}")

    def _readers(self) -> list[int]:
        """Its children, whichever of its threads started them."""
        tasks = (PROC / str(self.process.pid) / "task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def _cpu_s(self) -> float:
        """Of it and of the processes that it started, those that have ended too."""
        fields = (PROC / str(self.process.pid) / "stat").read_text().rpartition(")")[2].split()
        own = sum(map(int, fields[11:15])) / TICKS
        try:
            return own + sum(map(cpu_s, self._readers()))
        except (OSError, IndexError):
            return own


def measure(case: Case, folder: Path) -> tuple[list[list[object]], list[object]]:
    """Open it twice: the lines of two tables, starts and answers."""
    path = folder / "rollouts.jsonl"
    with path.open("wb") as file:
        file.writelines(rollouts(case))
    megabytes = path.stat().st_size / 1e6
    starts: list[list[object]] = []
    for time_of, most in (("first", case.most_cpu_s), ("again", case.most_again_cpu_s)):
        viewer = Viewer(path)
        try:
            shown = viewer.show(case)
            asked, searched, peak = viewer.ask(), viewer.search(), max(shown.peak_mb, viewer.memory_mb())
        finally:
            viewer.end()
        cpu = [shown.cpu_s, f"<={most:g}", verdict(shown.cpu_s <= most)]
        memory = [peak, f"<={case.most_mb:g}", verdict(peak <= case.most_mb)]
        starts.append([f"{case.title}, {time_of}", shown.page_s, shown.rows_s, shown.all_s, *cpu, *memory])
    answers = [case.title, asked, f"<={case.most_ask_ms:g}", verdict(asked <= case.most_ask_ms), megabytes / searched]
    for left in folder.iterdir():
        left.unlink()
    return starts, answers


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: 20,000 rollouts instead of 1,000,000")
    parser.add_argument("--full", action="store_true", help="10 kB a row: 10 GB in the temporary folder")
    options = parser.parse_args(arguments)
    cases = QUICK if options.quick else FULL if options.full else CASES
    with tempfile.TemporaryDirectory() as temporary:
        measured = [measure(case, Path(temporary)) for case in cases]
    starts = [line for lines, _ in measured for line in lines]
    head = ["start", "page s", "rows s", "all s", "CPU s", "target", "", "RSS MB", "target", ""]
    table("ng_viewer: until the page, the first rollouts, all of them", head, starts)
    head = ["100 lines, sorted and filtered", "CPU ms", "target", "", "search MB/s"]
    table("its answers", head, [line for _, line in measured])


if __name__ == "__main__":
    main()
