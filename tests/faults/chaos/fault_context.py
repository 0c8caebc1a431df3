"""Ground: what the faults of one round share: a copy of the stack, runs that are up already, and how they are asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.faults.chaos.command import Command
from tests.faults.chaos.endpoint import Behaviour, Endpoint, Script
from tests.faults.chaos.invariants import hold, no_crash, whole
from tests.faults.chaos.plugins import write_plugins, write_rows
from tests.faults.chaos.workspace import Run, Workspace

T = TypeVar("T")

TASKS, REPEATS = 40, 4
ENVIRONMENT, MODEL, AGENT = "environment", "model", "agent"
QUICK = 0.02
"""Seconds that the model takes: a collection then lasts long enough to be hit."""


def refs(environment: str = ENVIRONMENT, model: str = MODEL) -> dict[str, Any]:
    """The servers that an agent names."""
    return {
        "max_steps": 10,
        "resources_server": {"type": "resources_servers", "name": environment},
        "model_server": {"type": "responses_api_models", "name": model},
    }


def model_server(url: str | list[str], **settings: Any) -> dict[str, Any]:
    """vllm_model before an endpoint or several."""
    urls = f"{url}/v1" if isinstance(url, str) else [f"{one}/v1" for one in url]
    chosen = {"base_url": urls, "api_key": "unused-key", "model": "script", **settings}
    return {"responses_api_models": {"vllm_model": chosen}}


def stack(
    url: str | list[str], *, agent: str = "game_agent", model: Mapping[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """A whole config: the witness environment with `settings`, an agent, and the model server."""
    return {
        MODEL: model_server(url, **(model or {})),
        ENVIRONMENT: {"resources_servers": {"witness": settings}},
        AGENT: {"agents": {agent: refs()}},
    }


class FaultContext(Workspace):
    """A workspace with the plug-ins in it."""

    def __init__(self, folder: Path, code: Path, *, short: bool) -> None:
        super().__init__(folder, code)
        self.short = short
        write_plugins(folder)
        self.rows = write_rows(folder / "rows.jsonl", TASKS)
        self._shared: dict[str, asyncio.Task[Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closing = contextlib.AsyncExitStack()

    def lock(self, name: str) -> asyncio.Lock:
        """One at a time, by name."""
        return self._locks.setdefault(name, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def playing(
        self, behaviour: Behaviour | None = None, *overrides: str, here: Path | None = None, **settings: Any
    ) -> AsyncIterator[tuple[Run, Endpoint]]:
        """A run of its own before an endpoint of its own."""
        async with (
            Endpoint(behaviour or Script(latency_s=QUICK)).up() as endpoint,
            self.run(stack(endpoint.url, **settings), *overrides, here=here) as run,
        ):
            yield run, endpoint

    async def shared(self, name: str, make: Callable[[], contextlib.AbstractAsyncContextManager[T]]) -> T:
        """What `make` starts, once for all who ask; it stays until the end."""
        if name not in self._shared:
            self._shared[name] = asyncio.create_task(self._closing.enter_async_context(make()))
        made: T = await asyncio.shield(self._shared[name])
        return made

    async def plain(self) -> tuple[Run, Endpoint]:
        """The run that faults of files and rows share; nothing that they do touches it."""
        return await self.shared("plain", self.playing)

    async def close(self) -> None:
        """Stop what is shared."""
        await asyncio.gather(*self._shared.values(), return_exceptions=True)
        await self._closing.aclose()
        await self.stop_forking()

    async def begin(
        self, run: Run, output: Path, *arguments: str, rows: Path | None = None, agent: str = AGENT
    ) -> Command:
        """A collection of TASKS x REPEATS, eight at a time."""
        given = {argument.partition("=")[0] for argument in arguments}
        usual = [f"+num_repeats={REPEATS}", "+num_samples_in_parallel=8"]
        chosen = [argument for argument in usual if argument.partition("=")[0] not in given]
        return await self.collect(run, output, rows or self.rows, *chosen, *arguments, agent=agent)

    async def completes(
        self, run: Run, output: Path, *arguments: str, rows: Path | None = None, agent: str = AGENT
    ) -> str:
        """A collection to its end: 0, and everything is there as it should be. What it said."""
        command = await self.begin(run, output, *arguments, rows=rows, agent=agent)
        status = await command.ends()
        no_crash(command.said)
        hold(status == 0, f"ended with {status}: {command.said[-700:]}")
        whole(output, TASKS, REPEATS)
        return command.said

    def output(self) -> Path:
        """A new output, in a folder of its own."""
        folder = self.path("collection")
        folder.mkdir()
        return folder / "rollouts.jsonl"


async def written(output: Path, lines: int, command: Command) -> bool:
    """Wait until so many rollouts are in the file; False when the command ends before."""
    while not command.ended:
        if output.exists() and output.read_bytes().count(b"\n") >= lines:
            return True
        await asyncio.sleep(0.01)
    return False
