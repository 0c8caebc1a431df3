"""Calls from the trainer's thread into the event loop."""

from __future__ import annotations

import threading

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from rollyard.training.run.stack_calls import Interrupted, StackCalls


async def add(one: int, other: int) -> int:
    await anyio.sleep(0)
    return one + other


async def fail() -> None:
    raise ValueError("of the stack")


def test_results_and_exceptions_are_those_of_the_coroutine() -> None:
    with start_blocking_portal() as portal:
        calls = StackCalls(portal)
        assert calls.call(add, 1, 2) == 3
        with pytest.raises(ValueError, match="of the stack"):
            calls.call(fail)


def test_stop_ends_the_call_after_its_cleanup_and_all_later_ones() -> None:
    cleaned: list[str] = []
    running = threading.Event()

    async def play() -> None:
        try:
            running.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            cleaned.append("files closed")

    def stop() -> None:
        running.wait()
        calls.stop()

    with start_blocking_portal() as portal:
        calls = StackCalls(portal)
        stopper = threading.Thread(target=stop)
        stopper.start()
        with pytest.raises(Interrupted):
            calls.call(play)
        stopper.join()
        assert cleaned == ["files closed"]
        with pytest.raises(Interrupted):
            calls.call(add, 1, 2)
