"""`python -m tests.faults.chaos`: inject each fault into real processes and report the outcome.

    python -m tests.faults.chaos                           # every fault, three rounds with different seeds
    python -m tests.faults.chaos --short                   # one round of the inexpensive faults
    python -m tests.faults.chaos --fault renamed --rounds 5 --seed 7
    python -m tests.faults.chaos --write docs/evidence/robustness.md

The exit status is 1 if a fault did not hold or could not be injected.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.faults.chaos import page
from tests.faults.chaos.fault import Fault, Result
from tests.faults.chaos.fault_context import FaultContext
from tests.faults.chaos.faults import FAULTS
from tests.faults.chaos.invariants import Broken, NotInjected

LIMIT_S = 900.0
"""Limit for one fault, so that the program ends; not an expected duration."""


async def play(fault: Fault, context: FaultContext, seed: int) -> Result:
    rng = random.Random(f"{fault.name} {seed}")
    started = time.monotonic()
    verdict, why = "held", ""
    try:
        async with asyncio.timeout(LIMIT_S):
            await fault.play(context, rng)
    except Broken as broken:
        verdict, why = "broken", str(broken)
    except NotInjected as missing:
        verdict, why = "not injected", str(missing)
    except TimeoutError:
        verdict, why = "broken", f"no end within {LIMIT_S:g} s"
    except Exception as error:
        verdict, why = "not injected", "".join(traceback.format_exception(error))[-1500:]
    result = Result(fault, seed, verdict, why, time.monotonic() - started)
    print(result.summary(), flush=True)
    return result


async def play_all(faults: Sequence[Fault], context: FaultContext, seeds: Sequence[int], parallel: int) -> list[Result]:
    """Run every fault with every seed: `parallel` at a time, then the faults that must run alone."""
    slots = asyncio.Semaphore(parallel)

    async def limited(fault: Fault, seed: int) -> Result:
        async with slots:
            return await play(fault, context, seed)

    concurrent = [limited(fault, seed) for seed in seeds for fault in faults if not fault.alone]
    results = list(await asyncio.gather(*concurrent))
    for seed in seeds:
        results += [await play(fault, context, seed) for fault in faults if fault.alone]
    return results


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one round of the inexpensive faults")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round; later rounds count up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fault", action="append", default=[], help="only faults whose name contains this")
    parser.add_argument("--section", type=int, help="only faults of this section (2 files, 3 faults, 4 HTTP)")
    parser.add_argument("--parallel", type=int, default=3, help="faults that run concurrently")
    parser.add_argument("--write", type=Path, help="page to write the table into")
    parser.add_argument("--keep", type=Path, help="folder in which files are kept; default: a temporary one")
    parser.add_argument("--list", action="store_true", help="only list the faults")
    options = parser.parse_args()
    options.rounds = 1 if options.short else options.rounds
    return options


async def main() -> int:
    options = read_options()
    faults = [
        fault
        for fault in FAULTS
        if (not options.fault or any(part in fault.name for part in options.fault))
        and options.section in (None, fault.section)
        and not (options.short and fault.slow)
    ]
    if os.geteuid() != 0 and any(fault.root for fault in faults):
        print(f"skipped without root: {', '.join(fault.name for fault in faults if fault.root)}")
        faults = [fault for fault in faults if not fault.root]
    if options.list:
        print("\n".join(f"{fault.section}  {fault.name}" for fault in faults))
        return 0
    seeds = range(options.seed, options.seed + options.rounds)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rollyard-chaos-") as temporary:
        context = FaultContext(options.keep or Path(temporary), short=options.short)
        try:
            results = await play_all(faults, context, seeds, options.parallel)
        finally:
            await context.close()
        left = [] if not await context.left_behind() else ["processes were left behind"]
    not_held = [result for result in results if result.verdict != "held"]
    print(
        f"\n{len(results)} rounds of {len(faults)} faults, {time.monotonic() - started:.0f} s: {len(not_held)} not held"
    )
    for result in not_held:
        print(f"  {result.verdict}: {result.fault.name} (--seed {result.seed}): {result.why.strip()[:300]}")
    for what in left:
        print(f"  broken: {what}")
    if options.write:
        page.write(options.write, results)
    return 1 if not_held or left else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
