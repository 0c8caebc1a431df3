"""Starting a sandbox if this machine supports it, running a trial in one line, and finding its processes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.sandbox.records import Outcome, SandboxLimits, Trial
from rollyard.services.sandbox.sandbox import Sandbox
from tests.support.waiting import eventually


async def run_trial(sandbox: Sandbox, code: str, *tests: str, names: tuple[str, ...] = ("f",), **more: Any) -> Outcome:
    """The outcome of an answer; by default it defines `f`, and the test calls `f()`."""
    return await sandbox.run(Trial(code=code, names=names, tests=tests or ("f()",), **more))


async def start_or_skip(sandbox: Sandbox) -> None:
    """Start it. If no isolation is available, check that the error is one line with the remedy, and skip the test."""
    try:
        await sandbox.start()
    except OperatorError as error:
        assert "\n" not in str(error)
        assert "bubblewrap" in str(error) and "allow_unsandboxed" in str(error)
        pytest.skip(str(error))


async def start_in_mode_or_skip(mode: str, limits: SandboxLimits) -> Sandbox:
    """Return a sandbox that runs in this isolation mode, or skip the test if this machine does not support the mode."""
    sandbox = Sandbox(limits, bubblewrap=None) if mode == "landlock" else Sandbox(limits)
    await start_or_skip(sandbox)
    if sandbox.layers.mode != mode:
        await sandbox.stop()
        pytest.skip(f"{mode} is not available")
    return sandbox


def descendants(pid: int) -> list[int]:
    parents = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            match = re.search(r"^PPid:\t(\d+)", status.read_text(), re.MULTILINE)
        except OSError:
            continue
        if match:
            parents[int(status.parent.name)] = int(match.group(1))
    found, last = {pid}, 0
    while len(found) > last:
        last = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return sorted(found - {pid})


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until none of the processes exists. Fails if one still exists at the deadline of tests."""
    eventually(f"end of processes {pids}", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
