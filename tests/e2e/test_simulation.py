"""The simulator of tests/sim: a seed is one order of events, on every machine and in every process."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys

import pytest

from tests.modules import ROOT
from tests.sim.loop import SimLoop
from tests.support.waiting import deadline_s


def simulate(*arguments: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=deadline_s(),
    )


@pytest.mark.parametrize("seed", ["7", "30"])
def test_a_seed_has_the_same_trace_in_processes_whose_sets_have_another_order(seed: str) -> None:
    first, second = (simulate("--seed", seed, "--trace", hash_seed=hash_seed) for hash_seed in (1, 2))
    assert "steps" in first.stdout
    assert second.stdout == first.stdout
    assert first.returncode == second.returncode == 0


def test_several_processes_play_seeds_and_say_how_many_failed() -> None:
    done = simulate("--first", "40", "--seeds", "6", "--jobs", "2")
    assert done.stdout.startswith("6 seeds, 0 failed")
    assert (done.returncode, done.stderr) == (0, "")


def order(seed: int) -> str:
    """The order in which two processes take their steps."""
    loop, found = SimLoop(random.Random(seed)), list[str]()

    async def step(name: str) -> None:
        for _ in range(8):
            found.append(name)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(*(loop.spawn(name, step(name)) for name in "ab"))

    loop.run_until_complete(both())
    loop.close()
    return "".join(found)


def test_the_seed_alone_decides_which_process_runs_next() -> None:
    assert [order(seed) for seed in range(20)] == [order(seed) for seed in range(20)]
    assert len({order(seed) for seed in range(20)}) > 15
