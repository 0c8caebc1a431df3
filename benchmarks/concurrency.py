"""Calls/s with numbers of concurrent rollouts that are set by hand, and with the one that `--concurrency auto` finds.

The scripted model serves 48 calls at once, in half a second each. More calls wait, and with more than 96 the throughput
falls, so that the best number is known: any from about 50 to 100. `share` is relative to the best number set by hand,
and `whole` that of the whole collection, including the search and the last rollouts. `auto` runs twice: from the
throughput alone, and with the metrics that the model also serves, under vLLM's names.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

from benchmarks import workloads
from benchmarks.commands import BenchmarkError, ModelEndpoint, Run, collect, model_endpoint, stack
from benchmarks.tables import table, verdict

TURNS = 6
LATENCY_S = 0.5
CAPACITY, MOST = 48, 96
BY_HAND = (8, 16, 32, 64, 128, 256)
SECONDS, AUTO_SECONDS = 20.0, 120.0
"""Duration of a collection at the engine's highest throughput."""
SHARE = 0.95
EVERY_S = 0.2


@dataclass(frozen=True)
class Throughput:
    steady: float
    """Calls/s between 40 % and 90 % of all calls."""
    whole: float
    found: int | None


def measured(run: Run, script: ModelEndpoint, parallel: int | str, seconds: float) -> Throughput:
    at_once = CAPACITY if parallel == "auto" else min(int(parallel), CAPACITY)
    rollouts = round(seconds * at_once / LATENCY_S / TURNS / workloads.REPEATS) * workloads.REPEATS
    calls = rollouts * TURNS
    rows = workloads.sokoban_rows(run.folder / f"rows{parallel}.jsonl", rollouts, seed=rollouts, turns=TURNS)
    before, started = script.stats()[0], time.monotonic()
    collection = collect(run, workloads.AGENT, rows, parallel=parallel, repeats=workloads.REPEATS)
    samples: list[tuple[float, int]] = []
    first = last = started
    while collection.process.poll() is None:
        done, now = script.stats()[0] - before, time.monotonic()
        first = now if not done else first
        last = last if done >= calls else now
        if 0.4 <= done / calls <= 0.9:
            samples.append((now, done))
        time.sleep(EVERY_S)
    if collection.process.wait() != 0 or len(samples) < 2:
        raise BenchmarkError(f"{len(samples)} samples; the collection failed or was too short: {collection.status()}")
    slope = linear_regression(*zip(*samples, strict=True)).slope
    return Throughput(slope, calls / (last - first), collection.status().get("concurrency"))


def series(folder: Path, metrics: bool, parallel: Sequence[int | str], scale: float) -> dict[str, Throughput]:
    options = ["--capacity", str(CAPACITY), "--most", str(MOST), *(["--metrics"] if metrics else [])]
    slow = model_endpoint(*options, latency_ms=1000 * LATENCY_S, turns=TURNS)
    with slow as script, stack(folder, workloads.game(script.url)) as run:
        warm = workloads.sokoban_rows(run.folder / "warm.jsonl", 320, seed=2, turns=TURNS)
        collect(run, workloads.AGENT, warm, parallel=64, repeats=workloads.REPEATS).finish()
        return {
            f"auto{', with metrics' if metrics else ''}" if one == "auto" else str(one): measured(
                run, script, one, scale * (AUTO_SECONDS if one == "auto" else SECONDS)
            )
            for one in parallel
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: 64 by hand, and a short search")
    quick = parser.parse_args(arguments).quick
    by_hand, scale = ((64,), 0.1) if quick else (BY_HAND, 1.0)
    with tempfile.TemporaryDirectory() as temporary:
        found = series(Path(temporary), False, [*by_hand, "auto"], scale)
        if not quick:
            found |= series(Path(temporary), True, ["auto"], scale)
    best = max(found[str(one)].steady for one in by_hand)
    lines: list[list[object]] = []
    for name, one in found.items():
        share = one.steady / best
        target = [f">={SHARE:.0%}", verdict(share >= SHARE)] if one.found else ["", ""]
        shares = (f"{share:.0%}", *target, f"{one.whole / best:.0%}")
        lines.append([name, "" if one.found is None else one.found, one.steady, *shares])
    title = f"Scripted model, {CAPACITY} calls at once in {LATENCY_S:g} s each, slower with more than {MOST}"
    table(title, ["parallel", "found", "calls/s", "share", "target", "", "whole"], lines)


if __name__ == "__main__":
    main()
