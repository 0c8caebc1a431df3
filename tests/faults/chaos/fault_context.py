"""FaultContext: what the faults of one round share: a checkout, running stacks, and helpers to collect from them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.faults.chaos.command import Command
from tests.faults.chaos.endpoint import Behaviour, Endpoint, Script
from tests.faults.chaos.invariants import hold, whole
from tests.faults.chaos.plugins import write_plugins, write_rows
from tests.faults.chaos.workspace import Run, Workspace

T = TypeVar("T")

TASKS, REPEATS = 40, 4
ENVIRONMENT, MODEL, AGENT = "environment", "model", "agent"
QUICK = 0.02
"""Latency of the model in seconds, so that a collection lasts long enough to inject a fault."""


def refs(environment: str = ENVIRONMENT, model: str = MODEL) -> dict[str, Any]:
    return {
        "max_steps": 10,
        "resources_server": {"type": "resources_servers", "name": environment},
        "model_server": {"type": "responses_api_models", "name": model},
    }


def model_server(url: str | list[str], **settings: Any) -> dict[str, Any]:
    urls = f"{url}/v1" if isinstance(url, str) else [f"{endpoint}/v1" for endpoint in url]
    options = {"base_url": urls, "api_key": "unused-key", "model": "script", **settings}
    return {"responses_api_models": {"vllm_model": options}}


def stack(
    url: str | list[str], *, agent: str = "game_agent", model: Mapping[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """A complete config: the witness environment with `settings`, an agent, and the model server."""
    return {
        MODEL: model_server(url, **(model or {})),
        ENVIRONMENT: {"resources_servers": {"witness": settings}},
        AGENT: {"agents": {agent: refs()}},
    }


class FaultContext(Workspace):
    def __init__(self, folder: Path, *, short: bool) -> None:
        super().__init__(folder)
        self.short = short
        write_plugins(folder)
        self.rows = write_rows(folder / "rows.jsonl", TASKS)
        self._shared: dict[str, asyncio.Task[Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closing = contextlib.AsyncExitStack()

    def lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def playing(
        self, behaviour: Behaviour | None = None, *overrides: str, here: Path | None = None, **settings: Any
    ) -> AsyncIterator[tuple[Run, Endpoint]]:
        """A separate run with its own endpoint."""
        async with (
            Endpoint(behaviour or Script(latency_s=QUICK)).up() as endpoint,
            self.run(stack(endpoint.url, **settings), *overrides, here=here) as run,
        ):
            yield run, endpoint

    async def shared(self, name: str, make: Callable[[], contextlib.AbstractAsyncContextManager[T]]) -> T:
        """Start what `make` creates once and share it until the end."""
        if name not in self._shared:
            self._shared[name] = asyncio.create_task(self._closing.enter_async_context(make()))
        entered: T = await asyncio.shield(self._shared[name])
        return entered

    async def plain(self) -> tuple[Run, Endpoint]:
        """The run that faults in files and rows share, because they do not affect it."""
        return await self.shared("plain", self.playing)

    async def close(self) -> None:
        await asyncio.gather(*self._shared.values(), return_exceptions=True)
        await self._closing.aclose()

    async def begin(
        self, run: Run, output: Path, *arguments: str, rows: Path | None = None, agent: str = AGENT
    ) -> Command:
        """Start a collection of TASKS x REPEATS rollouts, eight at a time."""
        given = {argument.partition("=")[0] for argument in arguments}
        defaults = [f"+num_repeats={REPEATS}", "+num_samples_in_parallel=8"]
        options = [argument for argument in defaults if argument.partition("=")[0] not in given]
        return await self.collect(run, output, rows or self.rows, *options, *arguments, agent=agent)

    async def completes(
        self, run: Run, output: Path, *arguments: str, rows: Path | None = None, agent: str = AGENT
    ) -> str:
        """Run a collection to its end, check that it is complete, and return its output."""
        command = await self.begin(run, output, *arguments, rows=rows, agent=agent)
        status = await command.ends()
        hold(status == 0, f"ended with {status}: {command.output[-700:]}")
        whole(output, TASKS, REPEATS)
        return command.output

    def output(self) -> Path:
        folder = self.path("collection")
        folder.mkdir()
        return folder / "rollouts.jsonl"


async def written(output: Path, lines: int, command: Command) -> bool:
    """Wait until the file has `lines` lines; return False if the command ends before."""
    while not command.ended:
        if output.exists() and output.read_bytes().count(b"\n") >= lines:
            return True
        await asyncio.sleep(0.01)
    return False
