"""CPU time per verdict of all processes: Rollyard's grader compared with math-verify's parse and verify.

The answers are those of two models to MATH-500, and the gold answers of MATH-500 and GSM8K, if the datasets are next to
the repository; otherwise the environments' example rows. Starting the worker processes is reported separately.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from time import process_time

from benchmarks.commands import BenchmarkError, Config, stack
from benchmarks.comparison import Figure, Measure, warmed_up
from benchmarks.processes import family_cpu_s
from benchmarks.tables import table, verdict
from rollyard.records.data_files import INSTALLED
from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.dataset_sources import read_rows
from rollyard.resources_servers.environment import Verification
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS as GSM8K
from rollyard.resources_servers.gsm8k.app import gold_number
from rollyard.resources_servers.ifeval.app import outcome
from rollyard.resources_servers.ifeval.instruction import instruction
from rollyard.resources_servers.math.app import ANSWER_FORMS as MATH
from rollyard.resources_servers.math.app import gold_answer

DATA = INSTALLED.parent / "shared" / "data"
ENVIRONMENTS = INSTALLED / "resources_servers"
TRIPLES = Path(__file__).parent / "data" / "verdicts.jsonl"
WORDS = "This is a plain sentence about the weather, which was fine in the town. " * 20
PARTS = 24
"""Pairs of a comparison whose answers differ, so that no grader finds them in its caches."""
Pair = tuple[str, str]
TARGET = 1.0
"""Maximum ratio of our CPU time per verdict to math-verify's."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: one answer in fifty")
    asyncio.run(measure(quick=parser.parse_args(arguments).quick))
    print(f"IFEval: {ifeval():.2f} ms of CPU per prompt, strict and loose")


async def measure(*, quick: bool) -> None:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    workers = WorkerPool(1, 5.0)
    await workers.compare("x+1", "1+x")
    start = _worker_cpu()
    rows: list[tuple[object, ...]] = []
    for name, environment, pairs in sets():
        chosen = pairs[:: 50 if quick else 1]
        rollyard_ms = await rollyard(AnswerGrader(workers), chosen, environment) / len(chosen)
        library_ms = math_verify(chosen) / len(chosen)
        rows.append(
            (
                name,
                len(chosen),
                rollyard_ms,
                library_ms,
                rollyard_ms / library_ms,
                verdict(rollyard_ms <= TARGET * library_ms),
            )
        )
    await workers.close()
    columns = ("answers", "number", "Rollyard, ms", "math-verify, ms", "ratio", "target 1.0")
    table("CPU milliseconds per verdict", columns, rows, f"starting a worker process: {start:.1f} s of CPU, once each")


def figures() -> list[Figure]:
    """Return what a comparison measures: CPU time per `/verify` of each grader's server and its workers."""
    return [figure(environment, bodies) for environment, bodies in requests().items()]


def figure(environment: str, bodies: Sequence[bytes]) -> Figure:
    @contextlib.contextmanager
    def prepare(commands: Path, folder: Path) -> Iterator[Measure]:
        config: Config = {environment: {"resources_servers": {environment: {}}}}
        with stack(folder, config, commands=commands) as run:
            connection = HTTPConnection(run.urls[environment].removeprefix("http://"))
            pid = run.pids[environment]

            def once(number: int) -> dict[str, float]:
                before = family_cpu_s(pid)
                for body in (part := bodies[number % PARTS :: PARTS]):
                    connection.request("POST", "/verify", body, {"content-type": "application/json"})
                    response = connection.getresponse()
                    if "reward" not in json.loads(text := response.read()):
                        raise BenchmarkError(f"/verify of {environment}: {text.decode()}")
                return {environment: 1000 * (family_cpu_s(pid) - before) / len(part)}

            yield warmed_up(once)
            connection.close()

    return Figure(f"/verify of {environment}", "CPU ms", prepare)


def requests() -> dict[str, list[bytes]]:
    """Return the bodies for `/verify` by environment. Each pair sends a part of them, about half a second of CPU."""
    triples = list(read_rows(TRIPLES))
    math = [
        {"problem": each["problem"], "expected_answer": each["gold"], **answered(each["response"])}
        for each in triples
        if each["environment"] == "math"
    ]
    gsm8k = [
        {"question": each["problem"], "expected_answer": each["gold"], **answered(each["response"])}
        for each in triples
        if each["environment"] == "gsm8k"
    ]
    ifeval = [
        row | answered(f"{number} {WORDS}")
        for number, row in enumerate(read_rows(ENVIRONMENTS / "ifeval" / "data" / "example.jsonl"))
    ]
    kinds = (("gsm8k", gsm8k, 90), ("math", math, 1), ("ifeval", ifeval, 3600))
    return {name: [json.dumps(row).encode() for row in rows] * repeats for name, rows, repeats in kinds}


def answered(text: str) -> dict[str, object]:
    return {"response": {"status": "completed", "output": [message(text)]}}


def sets() -> Iterator[tuple[str, str, list[Pair]]]:
    """Yield (name, environment, (gold, text) pairs)."""
    if not DATA.is_dir():
        rows = list(read_rows(ENVIRONMENTS / "math" / "data" / "fewshot.jsonl"))
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
        answers = json.loads((DATA / "math" / f"math500_{model}_answers.json").read_text())
        yield f"MATH-500, {model}", "math", [(row["answer"], row["prediction"]) for row in answers]


async def rollyard(grader: AnswerGrader, pairs: Sequence[Pair], environment: str) -> float:
    """Return the CPU milliseconds for all `pairs`, including the worker processes."""
    parser = (GSM8K if environment == "gsm8k" else MATH)["chat"]
    bodies = [json.dumps({"response": {"output": [message(text)]}}).encode() for _, text in pairs]
    started = process_time() + _worker_cpu()
    for (gold, _), body in zip(pairs, bodies, strict=True):
        await grader.grade(gold, Verification(body), parser)
    return 1000 * (process_time() + _worker_cpu() - started)


def message(text: str) -> dict[str, object]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


def math_verify(pairs: Sequence[Pair]) -> float:
    """Return the CPU milliseconds of math-verify, called as in its README."""
    from math_verify import parse, verify  # type: ignore[import-untyped]

    return _timed(lambda: [verify(parse(f"${gold}$"), parse(text)) for gold, text in pairs])


def ifeval() -> float:
    """Return the CPU milliseconds per prompt, checking its instructions on a text of 280 words."""
    path = DATA / "ifeval" / "input_data.jsonl"
    rows = list(read_rows(path if path.is_file() else ENVIRONMENTS / "ifeval" / "data" / "example.jsonl"))
    checks = [
        (kind, instruction(kind, arguments), f"{number} {WORDS}")
        for number, row in enumerate(rows)
        for kind, arguments in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    ]
    return _timed(lambda: [outcome(*check) for check in checks]) / len(rows)


def _timed(work: Callable[[], object]) -> float:
    started = process_time()
    work()
    return 1000 * (process_time() - started)


def _worker_cpu() -> float:
    """Return the CPU seconds of children and grandchildren so far: a worker forks the process that compares."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            # Parent, then user and system time of the process and of its exited children.
            stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {pid for pid, (parent, _) in stats.items() if parent == os.getpid()}
    family |= {pid for pid, (parent, _) in stats.items() if parent in family}
    return sum(stats[pid][1] for pid in family) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
