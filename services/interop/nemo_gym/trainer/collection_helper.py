"""RolloutCollectionHelper: sends a trainer's rows to their agents, in the trainer's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rollyard.records.errors import Failure, RunError
from rollyard.records.run_types import HeadFile
from rollyard.records.types import Json
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.identify_head import identify_head
from rollyard.services.interop.nemo_gym.head import NemoGymHead
from rollyard.services.interop.nemo_gym.trainer.attempts import Attempts
from rollyard.services.interop.nemo_gym.trainer.names import BaseServerConfig
from rollyard.services.interop.nemo_gym.trainer.settings import CollectionSettings
from rollyard.services.interop.stack_clients import clients_of
from rollyard.services.runtime.run_dir import running_heads

Result = tuple[Json, Json]
"""The row as it was passed, and its result."""


class RolloutCollectionHelper:
    """Collects rollouts from a running stack, which may also be NeMo Gym's."""

    def run_examples(
        self,
        examples: Sequence[Json],
        head_server_config: BaseServerConfig | Mapping[str, Any] | None = None,
        semaphore: AbstractAsyncContextManager[Any] | None = None,
    ) -> Iterator[Awaitable[Result]]:
        """Start all rows, and return an awaitable for each result, in the order in which they are finished.

        Must be called in a running event loop. Each row needs `agent_ref.name`. `semaphore` limits the number of rows
        in flight. Without `head_server_config`, the newest run that was started from the working directory is used.
        """
        rows = list(examples)
        for number, row in enumerate(rows):
            agent = row.get("agent_ref")
            if not isinstance(agent, Mapping) or not isinstance(agent.get("name"), str):
                detail = f"row {number} has agent_ref {agent!r:.100}; expected the agent that runs it, as {{name: ...}}"
                raise ValueError(detail)
        address = head_server_config if head_server_config is None else BaseServerConfig.model_validate(
            head_server_config, from_attributes=True
        )  # fmt: skip
        session = _Session(_head_of(address), len(rows), semaphore or contextlib.nullcontext())
        return iter(asyncio.as_completed([session.run(row) for row in rows]))


class _Session:
    """The clients of one call of `run_examples`. They are created by the first row and closed after the last one."""

    def __init__(self, head: HeadFile, rows: int, semaphore: AbstractAsyncContextManager[Any]) -> None:
        self._head = head
        self._left = rows
        self._semaphore = semaphore
        self._opening: asyncio.Task[Attempts] | None = None
        self._lag = LoopLag()
        self._transport = HttpTransport(lag=self._lag)

    async def run(self, row: Json) -> Result:
        try:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open())
            attempts = await asyncio.shield(self._opening)
            async with self._semaphore:
                return row, await attempts.run(row)
        finally:
            self._left -= 1
            if not self._left:
                await self._transport.close()

    async def _open(self) -> Attempts:
        """Connect to the head. Raises RunError if it does not respond, and OperatorError for invalid settings."""
        try:
            head = await identify_head(self._transport, self._head, nemo_gym=True)
            clients = clients_of(head, self._transport, self._lag)
            directory = await clients.client.book.refresh()
            tree = await NemoGymHead(self._transport, head.url, head.token).config()
        except Failure as failure:
            raise RunError(f"the head at {self._head.url} cannot be used: {failure.problem.detail}") from None
        families: dict[str, list[str]] = {}
        for name, family in directory.families.items():
            families.setdefault(family, []).append(name)
        return Attempts(
            clients.client,
            CollectionSettings.of_config(tree),
            agents=families.get("agents", ()),
            model_servers=families.get("responses_api_models", ()),
        )


def _head_of(address: BaseServerConfig | None) -> HeadFile:
    """Return the head at `address`.

    A run of this working directory is called at the address that its head listens on, with its token: trainers pass
    the address of the host, while the servers of a run listen on 127.0.0.1.
    """
    own = running_heads(Path.cwd())
    for head in own:
        if address is None or head.url.endswith(f":{address.port}"):
            return head
    if address is None:
        raise RunError("no run was started from this folder: start one, or pass head_server_config")
    host = f"[{address.host}]" if ":" in address.host else address.host
    return HeadFile(run_id="", url=f"http://{host}:{address.port}", pid=0)
