from __future__ import annotations

import asyncio
import gc
import itertools
import time
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
    collecting = asyncio.create_task(collect_garbage(every_s=0.001, old_every_s=0.003))
    try:
        found = [weakref.ref(old), weakref.ref(Cycle())]
        del old
        await until(lambda: not any(one() for one in found), "the cycles are gone")
        assert not gc.isenabled()
    finally:
        collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    assert gc.isenabled()


@pytest.mark.parametrize(("cost_s", "is_repeated"), [(0.0, True), (0.001, False)])
async def test_the_longer_a_collection_of_all_objects_takes_the_later_is_the_next(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, is_repeated: bool
) -> None:
    generations = list[int]()
    readings = itertools.count()
    monkeypatch.setattr(process_setup, "tune_gc", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda generation=2: generations.append(generation))
    monkeypatch.setattr(time, "thread_time", lambda: next(readings) * cost_s)
    collecting = asyncio.create_task(collect_garbage(every_s=0.001, old_every_s=0.003))
    await until(lambda: len(generations) > 20)
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    assert (generations.count(2) > 1) is is_repeated
