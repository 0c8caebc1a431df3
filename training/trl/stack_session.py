"""StackSession: a running stack for programs that are not asynchronous, such as those that use TRL's trainers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import rollyard
from rollyard.records.errors import OperatorError
from rollyard.services.rollouts.collection import agents_of
from rollyard.training.training_stack import TrainingStack
from rollyard.training.weight_publisher import PolicyClient, VersionFolders, WeightPublisher

T = TypeVar("T")
Publish = Callable[[str, Callable[[Path], None]], None]
"""Saves a version of the weights with a function that writes a folder, and loads it into the engines."""


class StackSession:
    """A connection to a stack that `ng_run` or another program started. Its calls run in a thread of their own."""

    def __init__(
        self, head: str | None = None, *, policy_server: str = "policy_model", token: str | None = None
    ) -> None:
        """Connect. `head`, `token`: as for `rollyard.connect`. `policy_server`: name of the policy's model server.

        Raises RunError if the stack is not found or has no such server.
        """
        self._loop = LoopThread("rollyard")
        self._connection = rollyard.connect(head, token=token)
        try:
            self._loop.run(self._connection.start())
            url, clients = self._connection.url(policy_server), self._connection.access.clients
            self.stack = TrainingStack(clients, url, self._connection.token, frozenset({policy_server}))
        except BaseException:
            self.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that uses the stack."""
        return self._loop.run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return self._loop.submit(coroutine)

    def agent(self, name: str | None) -> str:
        """Return the agent of this name, or the only one. Raises OperatorError if there are several."""
        agents = agents_of(self._loop.run(self.stack.clients.registry.directory()))
        if name is None and len(agents) != 1:
            raise OperatorError(f"the stack has the agents {', '.join(sorted(agents)) or '(none)'}: choose one of them")
        return name or agents[0]

    def url(self, server: str) -> str:
        """Return the address of a ready instance of a server. Raises RunError if there is none."""
        return self._connection.url(server)

    def publisher(self, folder: Path, *, keep: int = 2, timeout_s: float = 600.0) -> Publish:
        """Return a function that publishes weights through the policy's model server, which needs
        `trainer_endpoints: true`. `folder`: where the versions are stored, for the engines to read. `keep`: how many of
        them stay. The function raises RunError if they are not loaded within `timeout_s` seconds.
        """
        client = PolicyClient(self.stack.clients.client.transport, self.stack.policy_url, self.stack.token)
        publisher = WeightPublisher(client, VersionFolders(folder.absolute(), keep=keep), timeout_s=timeout_s)

        def publish(version: str, save: Callable[[Path], None]) -> None:
            self._loop.run(publisher.publish(version, save))

        return publish

    def close(self) -> None:
        """Disconnect. Idempotent."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.run(self._connection.stop())
        self._loop.close()


class LoopThread:
    """Runs coroutines for synchronous callers, such as TRL, even if those are called from a running event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine. If the caller is interrupted, the coroutine is cancelled."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what is running, and stop the loop. Idempotent."""
        if not self._loop.is_closed():
            self.run(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
