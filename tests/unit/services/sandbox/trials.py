"""Running a trial in one line."""

from __future__ import annotations

from typing import Any

from rollyard.services.sandbox.records import Outcome, Trial
from rollyard.services.sandbox.sandbox import Sandbox


async def run_trial(sandbox: Sandbox, code: str, *tests: str, names: tuple[str, ...] = ("f",), **more: Any) -> Outcome:
    """The outcome of an answer; by default it defines `f`, and the test calls `f()`."""
    return await sandbox.run(Trial(code=code, names=names, tests=tests or ("f()",), **more))
