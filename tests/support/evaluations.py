"""`ng_eval` as a process: its output, its state, and the processes that it starts."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from tests.support.commands import BIN, command_environ
from tests.support.processes import alive, processes_with
from tests.support.waiting import deadline_s, eventually

MARK = "ROLLYARD_TEST_EVAL"
"""A variable that every process of an evaluation inherits."""
ENTRY = "rollyard.cli.entry"


class EvalProcess:
    """A running `ng_eval`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, output: Path, mark: str) -> None:
        self.process = process
        self.output = output
        self._log = log
        self._mark = mark

    @property
    def printed(self) -> str:
        return self._log.read_text()

    @property
    def state(self) -> dict[str, object]:
        """eval_state.json; empty if it was not written yet."""
        with contextlib.suppress(OSError):
            read: dict[str, object] = orjson.loads((self.output / "eval_state.json").read_bytes())
            return read
        return {}

    def rows(self) -> int:
        path = self.output / "rollouts.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait(self) -> int:
        return self.process.wait(3 * deadline_s())

    def collects(self, rows: int = 1) -> None:
        """Wait until it has collected this number of rollouts."""
        eventually(f"{rows} rollouts: {self.printed}", lambda: self.rows() >= rows or self.process.poll() is not None)
        assert self.process.poll() is None, self.printed

    def pids(self, word: str = "") -> list[int]:
        """Processes of this evaluation whose command line contains `word`, without `ng_eval` itself."""
        found = [pid for pid in processes_with(MARK, self._mark) if pid != self.process.pid]
        return [pid for pid in found if word in command_line(pid)]

    def guard_of(self, command: str) -> int:
        """The process group leader of one of Rollyard's commands."""
        return next(pid for pid in self.pids("process_group.py") if f"{ENTRY} {command}" in command_line(pid))

    def program(self, command: str) -> int:
        """The process of one of Rollyard's commands."""
        found = [pid for pid in self.pids(f"{ENTRY} {command}") if "process_group.py" not in command_line(pid)]
        return found[0]

    def leaves_nothing(self) -> None:
        eventually("every process of the evaluation is gone", lambda: not self.pids())

    def kill_everything(self) -> None:
        """kill -9 of ng_eval and of everything that it has started, in any order."""
        for pid in [self.process.pid, *self.pids()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ")
    except OSError:
        return ""


@contextlib.contextmanager
def ng_eval(*arguments: str, cwd: Path, output: str, env: Mapping[str, str] | None = None) -> Iterator[EvalProcess]:
    """`ng_eval arguments output_dir=...`; ended with everything it started if it is still running at the end."""
    mark, log = secrets.token_hex(8), cwd / f"ng_eval-{secrets.token_hex(4)}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(BIN / "ng_eval"), *arguments, f"output_dir={output}"],
            cwd=cwd,
            env={**command_environ(env), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    running = EvalProcess(process, log, cwd / output, mark)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill_everything()
        for pid in running.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually("its processes are gone", lambda: not any(alive(pid) for pid in running.pids()))
