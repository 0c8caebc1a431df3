"""RunningStack: an async context manager that runs a stack from Python.

It starts the stack on entry and stops it on exit, unless the stack was already running.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

from rollyard.records.errors import RunError, did_you_mean
from rollyard.records.run_types import Directory, HeadFile
from rollyard.services.config.run_config import RunConfig
from rollyard.services.config.venv import cache_folder
from rollyard.services.head.registry_client import StackClients
from rollyard.services.runtime.launcher import LocalLauncher
from rollyard.services.runtime.preflight import Preflight
from rollyard.services.runtime.process_setup import raise_file_limit
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import Stack, new_keys


class OpenAIArguments(TypedDict):
    """Arguments for `openai.OpenAI` and `openai.AsyncOpenAI`."""

    base_url: str
    api_key: str


@dataclass(frozen=True)
class StackAccess:
    head: HeadFile
    clients: StackClients
    directory: Callable[[], Directory]
    """Returns the latest known server directory."""


class RunningStack:
    """The servers of a run. Use it with `async with`; in a notebook, call `start` and `stop`."""

    def __init__(self, open_stack: Callable[[], AbstractAsyncContextManager[StackAccess]]) -> None:
        self._open_stack = open_stack
        self._exit_stack: contextlib.AsyncExitStack | None = None
        self._access: StackAccess | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the servers, or connect to them if they are already running.

        On failure, stops everything that was started and raises OperatorError or RunError with the message that
        `ng_run` prints.
        """
        if self._exit_stack is not None:
            raise RunError("this stack is already running")
        self._exit_stack = contextlib.AsyncExitStack()
        try:
            self._access = await self._exit_stack.enter_async_context(self._open_stack())
        except BaseException:
            self._exit_stack = None
            raise

    async def stop(self) -> None:
        """Stop what `start` started. Idempotent."""
        exit_stack, self._exit_stack, self._access = self._exit_stack, None, None
        if exit_stack is not None:
            await exit_stack.aclose()

    @property
    def access(self) -> StackAccess:
        """Access to the servers. Raises RunError while the stack is not running."""
        if self._access is None:
            raise RunError("this stack is not running: use it inside `async with`, or after `await stack.start()`")
        return self._access

    @property
    def head_url(self) -> str:
        """The head's URL. Commands that are started in other folders need it as `--head`."""
        return self.access.head.url

    @property
    def token(self) -> str | None:
        """The run's token, or None if requests do not need one."""
        return self.access.head.token

    @property
    def servers(self) -> dict[str, str]:
        """Name of each server -> its family: `agents`, `resources_servers` or `responses_api_models`."""
        return dict(self.access.directory().families)

    def url(self, name: str) -> str:
        """Return the base URL of a ready instance. Raises RunError if the server is unknown or not ready."""
        servers = self.access.directory().servers
        if name not in servers:
            available = ", ".join(sorted(servers))
            raise RunError(f"no server {name!r} in this run{did_you_mean(name, servers)} (it has {available})")
        if not servers[name]:
            raise RunError(f"{name} has no ready instance at the moment")
        return servers[name][0]

    def openai(self, name: str) -> OpenAIArguments:
        """Return arguments for OpenAI's client of a model server or agent: `AsyncOpenAI(**stack.openai("policy"))`."""
        return {"base_url": f"{self.url(name)}/v1", "api_key": self.token or "none"}


@contextlib.asynccontextmanager
async def started(
    config: RunConfig,
    *,
    colocate: bool,
    folder: Path,
    token: str | None,
    head_port: int,
    ready_timeout_s: float,
    environ: Mapping[str, str],
    print_line: Callable[[str], None],
) -> AsyncIterator[StackAccess]:
    """Start the servers of `config`, yield when all are ready, then stop them."""
    keys = new_keys(token)
    RunFolder.check(folder)
    preflight = Preflight(list(config.servers), new_keys(), environ)
    try:
        await preflight.check(cache_folder(environ), head=("127.0.0.1", head_port), colocate=colocate)
    finally:
        await preflight.close()
    raise_file_limit()
    stack = Stack(
        config,
        keys,
        RunFolder.create(folder, keys.run_id),
        print_line=print_line,
        launcher=None if colocate else LocalLauncher(cache_folder(environ), environ),
        head_port=head_port,
        ready_timeout_s=ready_timeout_s,
        environ=environ,
    )
    try:
        await stack.start()
        head = HeadFile(run_id=keys.run_id, url=stack.head_url, pid=0, folder=str(folder), token=token)
        clients = StackClients(stack.client, stack.registry_client())
        yield StackAccess(head, clients, stack.registry.directory)
    finally:
        await stack.stop()
