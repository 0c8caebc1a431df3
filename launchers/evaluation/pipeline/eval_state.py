"""EvalState: what an evaluation is doing, in `eval_state.json`, so that it can be shown and resumed after a crash."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Literal

import orjson
from pydantic import ValidationError

from rollyard.records.io.jsonl import replace
from rollyard.records.types import Record

Phase = Literal["running", "paused", "draining", "complete", "incomplete", "failed", "interrupted", "stopped"]
"""State of an evaluation.

`incomplete`: it ended with permanently failed rollouts; `failed`: it gave up or was refused; `interrupted`: by a
signal; `stopped`: by `ng_eval stop`. The last five are final.
"""
FINAL: tuple[Phase, ...] = ("complete", "incomplete", "failed", "interrupted", "stopped")


class EvalState(Record):
    """The state of one evaluation. The file is replaced atomically at every change."""

    id: str
    folder: str
    worker: str | None = None
    host: str
    pid: int
    started_ticks: int
    """Start time of the process in clock ticks since boot, which tells it from a later process with the same id."""
    state: Phase = "running"
    stage: str = "checks"
    """What it is doing: checks, ray, vllm, servers, collection, report, pause or done."""
    attempt: int = 0
    max_attempts: int = 1
    measured: int = 0
    expected: int = 0
    failed: int = 0
    address: str | None = None
    """URL of the control server while the evaluation is running."""
    message: str = ""
    """Why it ended, or what went wrong last."""
    started: float
    updated: float = 0.0


def new_state(run_id: str, folder: Path, worker: str | None, max_attempts: int) -> EvalState:
    """Return the state of an evaluation that this process begins."""
    return EvalState(
        id=run_id,
        folder=str(folder.absolute()),
        worker=worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ticks=start_ticks(os.getpid()),
        max_attempts=max_attempts,
        started=time.time(),
    )


def write_state(path: Path, state: EvalState) -> None:
    replace(path, orjson.dumps(state.model_dump(), option=orjson.OPT_INDENT_2) + b"\n")


def read_state(path: Path) -> EvalState | None:
    """Return the state in a file, or None if there is none that can be read."""
    try:
        return EvalState.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def is_alive(state: EvalState) -> bool:
    """Return whether the process of an evaluation on this host is running."""
    return state.host == socket.gethostname() and start_ticks(state.pid) == state.started_ticks != 0


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
