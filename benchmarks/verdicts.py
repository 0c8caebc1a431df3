"""What a verdict costs: ours beside math-verify's own parse and verify, CPU time of all processes.

Answers of two models to MATH-500, MATH-500's own solutions and GSM8K's gold numbers where the data sets lie beside the
repository, else the worlds' example rows. Processes are started before the clock; what that costs stands by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time

from benchmarks.tables import table, verdict
from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.dataset_sources import read_rows
from rollyard.resources_servers.environment import Verification
from rollyard.resources_servers.gsm8k.prompt_formats import ANSWER_FORMS as GSM8K
from rollyard.resources_servers.gsm8k.prompt_formats import gold_number
from rollyard.resources_servers.ifeval.scoring import instruction, outcome
from rollyard.resources_servers.math.prompt_formats import ANSWER_FORMS as MATH
from rollyard.resources_servers.math.prompt_formats import gold_answer
from rollyard.services.io.search_path import INSTALLED

DATA = INSTALLED.parent / "shared" / "data"
WORLDS = INSTALLED / "resources_servers"
Pair = tuple[str, str]
TARGET = 1.0
"""Our CPU time a verdict, as a part of math-verify's."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the answers")
    asyncio.run(measure(quick=parser.parse_args(arguments).quick))
    print(f"IFEval: {ifeval():.2f} ms of CPU a prompt, strict and loose")


async def measure(*, quick: bool) -> None:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    workers = WorkerPool(1, 5.0)
    await workers.compare("x+1", "1+x")
    start = _worker_cpu()
    rows: list[tuple[object, ...]] = []
    for name, world, pairs in sets():
        chosen = pairs[:: 10 if quick else 1]
        mine = await ours(AnswerGrader(workers), chosen, world) / len(chosen)
        theirs = library(chosen) / len(chosen)
        rows.append((name, len(chosen), mine, theirs, mine / theirs, verdict(mine <= TARGET * theirs)))
    await workers.close()
    columns = ("answers", "number", "ours, ms", "math-verify, ms", "ratio", "target 1.0")
    table("CPU milliseconds a verdict", columns, rows, f"starting a comparing process: {start:.1f} s of CPU, once each")


def sets() -> Iterator[tuple[str, str, list[Pair]]]:
    """(name, world, (gold, text) pairs)."""
    if not DATA.is_dir():
        rows = list(read_rows(WORLDS / "math" / "data" / "fewshot.jsonl"))
        yield "MATH examples", "math", [(str(gold_answer(row)), row["solution"]) for row in rows] * 50
        return
    tests = list(read_rows(DATA / "gsm8k" / "test.jsonl"))
    yield (
        "GSM8K, gold in a box",
        "gsm8k",
        [(g, f"\\boxed{{{g}}}") for row in tests if (g := gold_number(row["answer"]))],
    )
    tests = list(read_rows(DATA / "math" / "math500.jsonl"))
    yield "MATH-500, gold in a box", "math", [(row["answer"], f"\\boxed{{{row['answer']}}}") for row in tests]
    for model in ("gpt", "qwen3"):
        said = json.loads((DATA / "math" / f"math500_{model}_answers.json").read_text())
        yield f"MATH-500, {model}", "math", [(row["answer"], row["prediction"]) for row in said]


async def ours(judge: AnswerGrader, pairs: Sequence[Pair], world: str) -> float:
    """CPU milliseconds for all of `pairs`, those of the comparing process included."""
    reading = (GSM8K if world == "gsm8k" else MATH)["chat"]
    bodies = [json.dumps({"response": {"output": [message(text)]}}).encode() for _, text in pairs]
    begun = process_time() + _worker_cpu()
    for (gold, _), body in zip(pairs, bodies, strict=True):
        await judge.judge(gold, Verification(body), reading)
    return 1000 * (process_time() + _worker_cpu() - begun)


def message(text: str) -> dict[str, object]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


def library(pairs: Sequence[Pair]) -> float:
    """CPU milliseconds of math-verify, used as its manual has it."""
    from math_verify import parse, verify  # type: ignore[import-untyped]

    return _timed(lambda: [verify(parse(f"${gold}$"), parse(text)) for gold, text in pairs])


def ifeval() -> float:
    """CPU milliseconds a prompt: its instructions on a text of 300 words."""
    path = DATA / "ifeval" / "input_data.jsonl"
    rows = list(read_rows(path if path.is_file() else WORLDS / "ifeval" / "data" / "example.jsonl"))
    words = "This is a plain sentence about the weather, which was fine in the town. "
    told = [
        (kind, instruction(kind, about), f"{number} {words * 20}")
        for number, row in enumerate(rows)
        for kind, about in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    ]
    return _timed(lambda: [outcome(*one) for one in told]) / len(rows)


def _timed(work: Callable[[], object]) -> float:
    begun = process_time()
    work()
    return 1000 * (process_time() - begun)


def _worker_cpu() -> float:
    """CPU seconds of our children and of theirs so far: a comparing process forks the one that compares."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            # Parent, then time in user and system mode, own and of children that have ended.
            stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {pid for pid, (parent, _) in stats.items() if parent == os.getpid()}
    family |= {pid for pid, (parent, _) in stats.items() if parent in family}
    return sum(stats[pid][1] for pid in family) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
