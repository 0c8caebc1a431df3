from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from rollyard.services.runtime import process_setup
from rollyard.services.runtime.process_setup import collect_garbage
from tests.support.waiting import until


class Cycle:
    def __init__(self) -> None:
        self.itself = self


async def test_young_and_old_cycles_are_collected_while_a_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_setup, "tune_gc", lambda: None)  # it would freeze the objects of other tests
    old = Cycle()
    gc.collect()
    collecting = asyncio.create_task(collect_garbage(every_s=0.001, old_every=3))
    try:
        found = [weakref.ref(old), weakref.ref(Cycle())]
        del old
        await until(lambda: not any(one() for one in found), "the cycles are gone")
        assert not gc.isenabled()
    finally:
        collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    assert gc.isenabled()
