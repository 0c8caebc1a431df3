"""A trial in one line."""

from __future__ import annotations

from typing import Any

from rollyard.services.sandbox.records import Outcome, Trial
from rollyard.services.sandbox.sandbox import Sandbox


async def tried(sandbox: Sandbox, code: str, *tests: str, names: tuple[str, ...] = ("f",), **more: Any) -> Outcome:
    """Of an answer that defines f, unless told otherwise."""
    return await sandbox.run(Trial(code=code, names=names, tests=tests or ("f()",), **more))
