"""Engines that run the fake vLLM, and helpers that find the processes they leave behind."""

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

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.local_vllm_model import engine_process
from rollyard.responses_api_models.local_vllm_model.engine import Engine, StartPlan
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.services.backoff import Backoff
from rollyard.services.http.transport import HttpTransport
from tests.support.processes import parent_of, processes_with
from tests.support.waiting import deadline_s, until

FAKE = Path(__file__).with_name("fake_vllm.py")
MARK = "ROLLYARD_TEST_ENGINE"
"""An environment variable that all processes of an engine inherit, so that a test finds every one of them."""


class EngineHarness:
    """One engine that runs the fake vLLM; records the URLs that come up and go down, and finds its processes."""

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
        quick = Backoff(first_pause_s=0.01, longest_pause_s=0.05)
        self.engine = Engine(self.plan, up=self.open, down=self.down.append, restarts=quick)

    async def open(self, url: str) -> None:
        """Accept the engine, or refuse it while `refusals` is positive."""
        if self.refusals:
            self.refusals -= 1
            raise Failure(FailureKind.UPSTREAM_ERROR, "it does not take the weights")
        self.up.append(url)

    def started(self, number: int) -> Json:
        note: Json = json.loads((self.notes / f"start-{number}.json").read_text())
        return note

    def folder(self) -> Path:
        environ = Path(f"/proc/{self.started(1)['api']}/environ").read_bytes().split(b"\0")
        (entry,) = (entry for entry in environ if entry.startswith(engine_process.MARK.encode() + b"="))
        return Path(os.fsdecode(entry.partition(b"=")[2]))

    def reaper_pid(self) -> int:
        return parent_of(self.started(len(list(self.notes.glob("*.json"))))["api"])

    async def wait_until_up(self, times: int) -> None:
        """Wait until the engine has come up at least so many times."""
        await until(lambda: len(self.up) >= times)


@contextlib.asynccontextmanager
async def engine_harness(folder: Path, **settings: Any) -> AsyncIterator[EngineHarness]:
    """An engine that is stopped on exit, whatever the test did to it; fails if any of its processes is left."""
    transport = HttpTransport()
    harness = EngineHarness(folder, transport, **settings)
    try:
        yield harness
    finally:
        await harness.engine.stop()
        left = list(marked_processes(harness.mark))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await transport.close()
    assert left == []


def marked_processes(mark: str) -> Iterator[int]:
    return processes_with(MARK, mark)


async def wait_until_gone(mark: str) -> None:
    """Wait until no live process has the mark."""
    async with asyncio.timeout(deadline_s()):
        while list(marked_processes(mark)):
            await asyncio.sleep(0.05)
