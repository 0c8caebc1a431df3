"""`python -m tests.sim --seeds 300`: play seeds; `--seed N --trace`: replay one and print what happened."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback

from tests.sim.clock import CLOCK

CLOCK.install()

from tests.sim.world import World  # noqa: E402


def play(seed: int, *, trace: bool = False) -> str:
    world = World(seed)
    try:
        world.run()
        failed = ""
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
        if trace:
            traceback.print_exc()
    if trace:
        print(world.scenario)
        print("\n".join(world.trace))
        print(f"{world.loop.steps} steps, {world.network.requests} requests, {world.loop.time():.0f} s of virtual time")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    logging.disable()
    if given.seed is not None:
        failed = play(given.seed, trace=given.trace)
        print(failed or "held")
        return bool(failed)
    started = CLOCK.real_s()
    bad = 0
    for seed in range(given.seeds):
        if failed := play(seed):
            bad += 1
            print(f"seed {seed}: {failed[:300]}")
    print(f"{given.seeds} seeds, {bad} failed, {CLOCK.real_s() - started:.1f} s")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
