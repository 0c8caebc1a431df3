"""Explains how a program ended, with the last lines of its log."""

from __future__ import annotations

import re

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.exit_status import EXIT_USAGE
from rollyard.records.io.terminal import plain
from rollyard.services.runtime.programs.program import Program

TAIL_LINES = 12
_ERROR = re.compile(r"\b\w*(?:Error|Exception): \S")
_DERIVED = re.compile(r"[Ss]ee (?:root cause|stack trace)|initialization failed|EngineDeadError")


def ended_badly(program: Program) -> str:
    """Describe how a program ended, with the last lines of its log."""
    status = program.ended.result()
    return f"{program.name} {ending(status)}\n{tail(program)}"


def raise_for(program: Program) -> None:
    """Raise the error of a program that has ended: OperatorError if a retry would fail again, else RunError."""
    if program.ended.result() == EXIT_USAGE:
        raise OperatorError(ended_badly(program))
    raise RunError(ended_badly(program))


def tail(program: Program) -> str:
    """Return the last lines of a program's output and the path of its log."""
    lines = [line.rstrip() for line in program.printed().replace("\r", "\n").splitlines() if line.strip()]
    last, earlier = lines[-TAIL_LINES:], lines[:-TAIL_LINES]
    # vLLM's engine reports the cause, and its API server then prints many lines that refer to it.
    cause = [line for line in earlier if _ERROR.search(line) and not _DERIVED.search(line)][-1:]
    shown = "".join(f"  | {plain(line)[:300]}\n" for line in [*cause, *(["..."] if cause else []), *last])
    return f"{shown}  log: {program.log}"


def ending(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status}"
    return f"was killed by signal {status - 128}" if status > 128 + 1 else f"exited with status {status}"
