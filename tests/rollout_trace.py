"""Follows one rollout through the code: which of our files its `/run` enters, and how often it changes files."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import aiohttp

import rollyard
from rollyard.services.runtime.running_stack import RunningStack
from tests.modules import ROOT

CONFIG = "configs/sokoban_builtin.yaml"
ROWS = ROOT / "resources_servers" / "grl_sokoban" / "data" / "example.jsonl"
_OURS = (str(ROOT) + "/", str(ROOT / "src" / "rollyard") + "/")


class Trace:
    """Counts calls from a function of one of our files into a function of another one."""

    def __init__(self) -> None:
        self.jumps: Counter[tuple[str, str]] = Counter()
        self._paths: dict[CodeType, str] = {}
        self._entered: set[FrameType] = set()

    @property
    def files(self) -> set[str]:
        return {file for jump in self.jumps for file in jump if file}

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """For `sys.setprofile`. A coroutine that continues is no call."""
        if event == "call" and frame not in self._entered and (entered := self._path(frame.f_code)):
            self._entered.add(frame)
            caller = frame.f_back
            while caller is not None and not self._path(caller.f_code):
                caller = caller.f_back
            left = self._path(caller.f_code) if caller is not None else ""
            if left != entered:
                self.jumps[left, entered] += 1

    def _path(self, code: CodeType) -> str:
        """The file of a function of ours, relative to the root; "" for another's."""
        if code not in self._paths:
            name = code.co_filename
            own = name.startswith(_OURS) and "/.venv" not in name and not name.startswith(str(ROOT / "tests"))
            self._paths[code] = str(Path(name).resolve().relative_to(ROOT)) if own else ""
        return self._paths[code]


async def trace(folder: Path) -> Trace:
    """Play a room twice with all servers in this process, and follow the second `/run`."""
    stack = rollyard.stack(CONFIG, colocate=True, folder=folder, server_roots=[ROOT])
    row = json.loads(ROWS.read_text().splitlines()[0])
    row["responses_create_params"]["temperature"] = 0  # the same moves each time
    found = Trace()
    async with stack, aiohttp.ClientSession(headers=_headers(stack)) as session:
        url = f"{stack.url('grl_sokoban_game_agent')}/run"
        for profile in (None, found.profile):
            await _post(session, url, row, profile)
    return found


def _headers(stack: RunningStack) -> dict[str, str]:
    return {"Authorization": f"Bearer {stack.token}"} if stack.token else {}


async def _post(session: aiohttp.ClientSession, url: str, row: Any, profile: Callable[..., None] | None) -> None:
    sys.setprofile(profile)
    try:
        async with session.post(url, json=row) as response:
            response.raise_for_status()
            await response.read()
    finally:
        sys.setprofile(None)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(trace(Path(scratch)))
    for (left, entered), count in found.jumps.most_common():
        print(f"{count:5} {left or '-'} -> {entered}")
    print(f"{len(found.files)} files, {found.jumps.total()} jumps")
