"""Engines on the fake vLLM for tests, and the search for what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from rollyard.responses_api_models.local_vllm_model import orphaned_processes
from rollyard.responses_api_models.local_vllm_model.engine import Engine
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.responses_api_models.local_vllm_model.startup import StartPlan
from rollyard.services.backoff import Restarts
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.transport import HttpTransport
from rollyard.services.types import Json
from tests.support.fixtures import until
from tests.support.processes import parent_of, processes_with

FAKE = Path(__file__).with_name("fake_vllm.py")
MARK = "ROLLYARD_TEST_ENGINE"
"""A variable that every process of an engine inherits, so that none can hide."""
LONG_S = 120.0
"""For what happens at once, on a machine that is busy otherwise."""


class Bench:
    """One engine on the fake vLLM, its addresses as they come and go, its processes."""

    def __init__(self, folder: Path, transport: HttpTransport, **settings: Any) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.mark = secrets.token_hex(8)
        self.refusals = 0
        self.up: list[str] = []
        self.down: list[str] = []
        environment = {MARK: self.mark, "FAKE_NOTES": str(self.notes), **settings.pop("environment", {})}
        own = {"model": "/models/tiny", "vllm_command": [sys.executable, str(FAKE)], "environment": environment}
        self.plan = StartPlan(
            title="engine 0",
            settings=LocalVllmModelSettings.model_validate({**own, **settings}),
            gpus=(),
            key="a key",
            environ=dict(os.environ),
            log_file=folder / "policy-engine-0.log",
            transport=transport,
        )
        quick = Restarts(first_pause_s=0.01, longest_pause_s=0.05)
        self.engine = Engine(self.plan, up=self.open, down=self.down.append, restarts=quick)

    async def open(self, url: str) -> None:
        """Calls may go there, unless it was said to refuse the next."""
        if self.refusals:
            self.refusals -= 1
            raise Failure(FailureKind.UPSTREAM_ERROR, "it does not take the weights")
        self.up.append(url)

    def started(self, number: int) -> Json:
        """What the fake noted at that start."""
        read: Json = json.loads((self.notes / f"start-{number}.json").read_text())
        return read

    def folder(self) -> Path:
        """The folder of the engine that runs, from its API server's environment."""
        environ = Path(f"/proc/{self.started(1)['api']}/environ").read_bytes().split(b"\0")
        (entry,) = (entry for entry in environ if entry.startswith(orphaned_processes.MARK.encode() + b"="))
        return Path(os.fsdecode(entry.partition(b"=")[2]))

    def keeper(self) -> int:
        """Process id of the keeper: the parent of the API server."""
        return parent_of(self.started(len(list(self.notes.glob("*.json"))))["api"])

    async def comes_up(self, times: int) -> None:
        """Wait until it was up so many times."""
        await until(lambda: len(self.up) == times, LONG_S)


@contextlib.asynccontextmanager
async def bench(folder: Path, **settings: Any) -> AsyncIterator[Bench]:
    """An engine that is stopped at the end, whatever the test did to it; nothing of it is left."""
    transport = HttpTransport()
    made = Bench(folder, transport, **settings)
    try:
        yield made
    finally:
        await made.engine.stop()
        left = list(bearers(made.mark))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await transport.close()
    assert left == []


def bearers(mark: str) -> Iterator[int]:
    """Running processes that inherited the mark."""
    return processes_with(MARK, mark)


async def all_gone(mark: str) -> None:
    """Wait until nobody bears the mark."""
    async with asyncio.timeout(LONG_S):
        while list(bearers(mark)):
            await asyncio.sleep(0.05)
