"""Copies of the project in which a module is changed and tested. The checkout itself is never changed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.modules import ROOT
from tests.mutation.selection import Imports


def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def newest_older_than_a_day() -> str:
    return git("rev-list", "-1", f"--before={int(time.time()) - 86_400}", "HEAD")


@dataclass(frozen=True)
class Run:
    """The result of one run of pytest: the first test that failed, and the CPU seconds of each file up to there."""

    failed: str | None
    hung: bool
    finished: bool  # not ended by the limit of CPU time or by a failure
    cpu_s: dict[str, float]
    """Only the last of these files may be unfinished."""


def read_events(lines: Iterable[str], hung: bool) -> Run:
    """Interpret what the recorder wrote. Where pytest hung or crashed, the test that started last did it."""
    failed: str | None = None
    finished = started = crashed = False
    cpu_s: dict[str, float] = {}
    before = 0.0
    last = "?"
    for event in map(json.loads, lines):
        test = event["test"]
        if event["kind"] == "end":
            finished = event["status"] in (0, 5)  # 5: no test is left
            crashed = event["status"] not in (0, 1, 2, 5)  # 2: the limit of CPU time
            continue
        if event["kind"] == "start":
            started, last = True, test
        if event["kind"] in ("start", "call", "setup", "teardown"):
            file = test.partition("::")[0]
            cpu_s[file] = cpu_s.get(file, 0.0) + event["cpu"] - before
            before = event["cpu"]
        elif not started:
            last = test
        if event["failed"] and not failed:
            failed = test
    return Run(failed or (last if hung or crashed else None), hung, finished and not hung, cpu_s)


class Suite:
    """The product and the tests of a revision, in a folder with a virtual environment of its own."""

    def __init__(self, folder: Path, revision: str) -> None:
        self.root = folder / "checkout"
        self._marker = folder / "changed.json"
        self._last_mtime = 0
        self._restore()
        stamp = folder / "revision"
        if not stamp.exists() or stamp.read_text() != revision:
            shutil.rmtree(folder, ignore_errors=True)
            self.root.mkdir(parents=True)
            archive = subprocess.run(["git", "-C", str(ROOT), "archive", revision], check=True, capture_output=True)
            subprocess.run(["tar", "-x", "-C", str(self.root)], input=archive.stdout, check=True)
            if (data := ROOT.parent / "shared").exists():  # tests look for data sets beside their checkout
                (folder / "shared").symlink_to(data)
            _install(self.root)
            stamp.write_text(revision)
        self.imports = Imports(self.root)

    def source(self, path: str) -> str:
        return (self.root / path).read_text()

    def sources(self, folder: str) -> dict[str, str]:
        return {str(path.relative_to(self.root)): path.read_text() for path in (self.root / folder).rglob("*.py")}

    @contextmanager
    def changed(self, path: str, source: str) -> Iterator[None]:
        """Replace a file for a while. A later process restores it if this one is killed."""
        self._marker.write_text(json.dumps({"path": path, "source": self.source(path)}))
        self._write(path, source)
        try:
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        if self._marker.exists():
            original = json.loads(self._marker.read_text())
            self._write(original["path"], original["source"])
            self._marker.unlink()

    def _write(self, path: str, source: str) -> None:
        """Write with a time of its own: Python knows by seconds and size whether its compiled file is up to date."""
        self._last_mtime = max(self._last_mtime + 2, int(time.time()))
        (self.root / path).write_text(source)
        os.utime(self.root / path, (self._last_mtime, self._last_mtime))

    def run(self, tests: list[str], cpu_s: float, hang_s: float, deselected: Iterable[str] = ()) -> Run:
        """Run tests until one fails, or hangs for `hang_s`, for `cpu_s` seconds of CPU time at most."""
        events = self.root.parent / "events.jsonl"
        events.write_text(json.dumps({"kind": "begin", "test": tests[0], "failed": False}) + "\n")
        plugin = Path(__file__).with_name("recorder.py")
        options = ["-x", "-q", "-p", plugin.stem, "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        options += [f"--deselect={test}" for test in deselected]
        command = [str(self.root / ".venv/bin/python"), "-m", "pytest", *options, *tests]
        variables = {"PYTHONPATH": plugin.parent, "MUTATION_EVENTS": events, "MUTATION_CPU_S": cpu_s}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        with (self.root.parent / "output.txt").open("wb") as output:
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            process = subprocess.Popen(command, cwd=self.root, env=environment, start_new_session=True, **streams)
            hung = _wait(process, events, hang_s)
        with events.open("a") as file:
            file.write(json.dumps({"kind": "end", "test": "", "status": process.returncode}) + "\n")
        return read_events(events.read_text().splitlines(), hung)


def _wait(process: subprocess.Popen[bytes], events: Path, hang_s: float) -> bool:
    """Wait until a process ends, then end its children. Return whether it was ended because it wrote no events."""
    size, since = -1, time.monotonic()
    hung = False
    try:
        while process.poll() is None and not hung:
            if (now := events.stat().st_size) != size:
                size, since = now, time.monotonic()
            hung = time.monotonic() - since > hang_s
            time.sleep(0.1)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return hung


def _install(checkout: Path) -> None:
    """Give `checkout` an environment with this checkout's packages, whose commands import what is in `checkout`."""
    environment = checkout / ".venv"
    script = ROOT / "requirements" / "environment.py"
    subprocess.run([sys.executable, str(script), str(environment), "dev", "--no-project"], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(checkout)], check=True)
