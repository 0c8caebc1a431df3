"""What becomes of the other collectors if one cannot go on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.records.rollout_keys import Shard
from rollyard.services.rollouts.collectors import MAX_DEATHS, CollectorProcess, Collectors
from rollyard.services.rollouts.progress import CollectionProgress


class Running:
    """A process that ends when it gets a signal."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._ended = asyncio.Event()

    def send(self, number: signal.Signals) -> None:
        self.received.append(number)
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return 130


class Ended:
    def __init__(self, code: int, printed: bytes, write: Callable[[bytes], None]) -> None:
        self._code = code
        write(printed)

    def send(self, number: signal.Signals) -> None:
        raise AssertionError

    async def wait(self) -> int:
        return self._code


@pytest.mark.parametrize(
    ("code", "starts", "why"),
    [
        (137, MAX_DEATHS, "collector 1/2 was killed by signal 9 3 times without storing a rollout"),
        (-9, MAX_DEATHS, "collector 1/2 was killed by signal 9 3 times without storing a rollout"),
        (1, 1, "collector 1/2 has failed: disk full"),
        (2, 1, "collector 1/2 has failed: disk full"),
    ],
)
async def test_if_one_keeps_being_killed_or_fails_the_other_is_drained_once(
    code: int, starts: int, why: str, tmp_path: Path
) -> None:
    started: list[Shard] = []
    began = asyncio.Event()
    other, lines = Running(), list[str]()

    async def start(shard: Shard, write: Callable[[bytes], None]) -> CollectorProcess:
        started.append(shard)
        if shard.number == 2:
            began.set()
            return other
        await began.wait()
        return Ended(code, b"starting\ndisk full\n", write)

    before = CollectionProgress(4).status("running")
    collectors = Collectors(
        *(tmp_path / "x.jsonl", 2, start, before, 0.5),
        print_line=lines.append,
        write_status=lambda status: None,
    )
    assert await collectors.run() == "stopped"
    assert collectors.stopped_because == why
    assert other.received == [signal.SIGUSR1]
    assert started.count(Shard(1, 2)) == starts
    assert (lines.count("disk full"), len([line for line in lines if "another one" in line])) == (1, starts - 1)
