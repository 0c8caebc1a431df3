"""An in-process engine that receives weights by vLLM's transfer protocol, and a sender for a fake process group.

The fake group has NCCL's nature: both sides of a step wait until the other side takes part.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from rollyard.records.types import Json
from rollyard.training.weights.weight_sender import TransferMethod
from tests.support.weight_engine import WeightEngine

SENT = "/weights/sent"


class FakeGroup:
    """A process group of a sender and engines. Thread-safe, because the sender runs in a thread."""

    def __init__(self) -> None:
        self.joined: list[int] = []
        """Ranks of the engines that have joined."""
        self.opened = threading.Event()
        self.stream: list[tuple[str, list[int]]] | None = None
        """What the sender broadcasts: names and shapes."""
        self.has_sent = threading.Event()
        self.received = 0


class TransferEngine(WeightEngine):
    """The engine. It has `workers` GPUs."""

    def __init__(self, group: FakeGroup, *, workers: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.group = group
        self.workers = workers
        self.is_joined = False
        self.is_updating = False
        self.infos: list[Json] = []
        """`update_info` of each update."""

    def restart(self) -> None:
        super().restart()
        self.is_joined = self.is_updating = False

    async def _response(self, path: str, query: str, body: Json) -> tuple[int, bytes, bytes]:
        if path == "/update_weights" and path in self.fails | self.fails_once:
            self.is_updating = False  # as in vLLM, whose worker ends an update that fails
        elif path not in self.fails and path not in self.fails_once:
            if path == "/init_weight_transfer_engine":
                self.is_joined = True
                self.group.joined.append(int(body["init_info"].get("rank_offset", 0)))
                await self._wait(self.group.opened)
            if path == "/update_weights":
                await self._receive(body["update_info"])
        return await super()._response(path, query, body)

    def _control(self, path: str, query: str, body: Json) -> tuple[int, Any]:
        if path == "/get_world_size":
            return 200, {"world_size": self.workers}
        if path == "/start_weight_update":
            if self.is_updating:
                return 500, {"error": {"message": "a weight update is already active"}}
            self.is_updating = True
        if path == "/finish_weight_update":
            if not self.is_updating:
                return 500, {"error": {"message": "finish without start"}}
            self.is_updating = False
        return super()._control(path, query, body)

    async def _receive(self, info: Json) -> None:
        if not self.is_joined:
            self.is_updating = False
            raise ConnectionResetError("the engine has not joined")
        self.infos.append(info)
        await self._wait(self.group.has_sent)
        assert self.group.stream == list(zip(info["names"], info["shapes"], strict=True))
        self.group.received += 1

    async def _wait(self, event: threading.Event) -> None:
        while not event.is_set():
            await asyncio.sleep(0.001)


class FakeSender:
    """A WeightSender of two tensors."""

    method: TransferMethod = "nccl"

    def __init__(self, group: FakeGroup, engines: int = 1) -> None:
        self.group = group
        self.engines = engines
        self.workers = 0
        self.calls: list[str] = []
        self.fails_once: set[str] = set()
        self.hangs_at = ""
        self.weights = [("model.embed_tokens.weight", [8, 4]), ("lm_head.weight", [8, 4])]

    def init_info(self, workers: int) -> Json:
        self._step("init_info")
        self.workers = workers
        return {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": workers + 1}

    def open(self) -> None:
        self._step("open")
        self.group.opened.set()

    def update_info(self) -> Json:
        self._step("update_info")
        self.group.has_sent.clear()
        return {
            "names": [name for name, _ in self.weights],
            "dtype_names": ["float32"] * len(self.weights),
            "shapes": [shape for _, shape in self.weights],
        }

    def send(self) -> None:
        self._step("send")
        self.group.stream = list(self.weights)
        self.group.has_sent.set()

    def close(self) -> None:
        self.calls.append("close")
        self.group.opened.clear()

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if name == self.hangs_at:
            threading.Event().wait()
        if name in self.fails_once:
            self.fails_once.discard(name)
            raise ConnectionError(f"the group broke in {name}")
