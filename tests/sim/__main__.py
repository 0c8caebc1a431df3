"""`python -m tests.sim --seeds 300`: play seeds; `--seed 7 --trace`: replay one and print what happened."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import signal
import sys
import traceback

from tests.sim.clock import CLOCK

CLOCK.install()

from tests.sim.world import World  # noqa: E402


def play(seed: int, *, trace: bool = False) -> str:
    """Play a seed and return what was violated; empty if everything held."""
    world = World(seed, traced=trace)
    failed = ""
    try:
        world.run()
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
        if trace:
            traceback.print_exc()
    if trace:
        print(world.scenario)
        print("\n".join(world.trace))
        print(f"{world.loop.steps} steps, {world.network.requests} requests, {world.loop.time():.3f} s of virtual time")
    return failed


def warm_up() -> None:
    """Fill the caches of the product before the seeds that count, and leave what they hold out of garbage collections.

    A seed must not depend on those before it in its process, so nothing is collected while it runs.
    """
    gc.disable()
    play(0)
    gc.collect()
    gc.freeze()


def play_all(seeds: range, *, stop: bool) -> int:
    """Play the seeds, print those that fail, and return their number."""
    bad = 0
    for seed in seeds:
        if failed := play(seed):
            bad += 1
            print(f"seed {seed}: {failed[:500]}", flush=True)
            if stop:
                break
    return bad


def play_in_processes(seeds: range, jobs: int, *, stop: bool) -> int:
    """Divide the seeds among forks of this process, and return how many fail. A fork that dies counts as a failure."""
    sys.stdout.flush()
    children = set()
    for number in range(jobs):
        if (child := os.fork()) == 0:
            failed = 0
            with contextlib.suppress(KeyboardInterrupt):
                failed = play_all(seeds[number::jobs], stop=stop)
            os._exit(min(failed, 255))
        children.add(child)
    bad = 0
    while children:
        child, status = os.wait()
        children.discard(child)
        bad += os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1
        if bad and stop:
            for other in children:
                os.kill(other, signal.SIGINT)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds to play")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes; default: all cores")
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--seed", type=int, help="play only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened")
    given = parser.parse_args()
    logging.disable()
    started = CLOCK.real_s()
    warm_up()
    if given.seed is not None:
        failed = play(given.seed, trace=given.trace)
        print(f"seed {given.seed}: {failed or 'held'}")
        return bool(failed)
    bad = play_in_processes(range(given.first, given.first + given.seeds), given.jobs, stop=given.stop)
    cpu_s = sum(os.times()[:4]) / given.seeds
    print(f"{given.seeds} seeds, {bad} failed, {CLOCK.real_s() - started:.0f} s, {cpu_s:.3f} CPU-s each")
    if bad:
        print("replay a seed with: make sim SEED=n")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
