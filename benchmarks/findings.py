"""The findings of 100,000 rollouts: CPU time of one process to read the signs of all rows, and to find and rank.

Three kinds of rows take turns: a solution with a boxed answer, a program, and an episode with ten tool calls. The file
is in the page cache when it is read.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.tables import table, verdict
from rollyard.analysis.findings.find import find, read_signs
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.run_plan import NO_ATTEMPTS

ROWS, QUICK_ROWS = 100_000, 3_000
REPEATS = 8
MAX_READ_S, MAX_FIND_S = 30.0, 1.0
_STEP = "We multiply both sides by the same number and simplify what remains, which gives a smaller equation. "
_PROGRAM = "    total = 0\n    for number in numbers:\n        total += number * 2\n    return total\n"


def rollouts(rows: int) -> Iterator[bytes]:
    """Yield rows; one in a hundred lists its answers."""
    draws = random.Random(0)
    for number in range(rows):
        task, repeat = divmod(number, REPEATS)
        gold, output = str(draws.randrange(1000)), list[Any]()
        right = draws.random() < 0.5
        found = gold if right else str(draws.randrange(1000))
        if number % 3 == 0:
            boxes = rf"\boxed{{{found}}}" if number % 100 else rf"\boxed{{1}} \boxed{{{gold}}} \boxed{{3}}"
            text = f"{_STEP * draws.randint(4, 16)}\nThe answer is {boxes}."
        elif number % 3 == 1:
            text = f"Here it is:\n```python\ndef f(numbers):\n{_PROGRAM * draws.randint(4, 10)}```"
        else:
            text = "The puzzle is solved."
            for step in range(10):
                call = {"type": "function_call", "call_id": str(step), "name": "move", "arguments": '{"to": "up"}'}
                output += [call, {"type": "function_call_output", "call_id": str(step), "output": f"board {step}"}]
        output.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
        row = {
            "responses_create_params": {"input": [{"role": "user", "content": "Solve it. " * 30}]},
            "response": {"output": output, "usage": {"input_tokens": 90, "output_tokens": len(text) // 4}},
            "reward": float(right or number % 300 == 0),
            "success": right or number % 300 == 0,
            "expected_answer": gold,
            "extracted_answer": found,
            "_ng_task_index": task,
            "_ng_rollout_index": repeat,
        }
        yield orjson.dumps(row) + b"\n"


def measure(rows: int, folder: Path) -> list[object]:
    """Return one row of the table."""
    path = folder / "rollouts.jsonl"
    with path.open("wb") as file:
        file.writelines(rollouts(rows))
    run, size = load(path), path.stat().st_size
    started = time.process_time()
    signs = read_signs(path, size)
    read_s = time.process_time() - started
    found = find(run, signs, NO_ATTEMPTS)
    find_s = time.process_time() - started - read_s
    scale = rows / ROWS
    path.unlink()
    return [
        *(f"{rows:,} rollouts", size / 1e6, read_s, f"<={MAX_READ_S * scale:g}", verdict(read_s <= MAX_READ_S * scale)),
        *(find_s, f"<={MAX_FIND_S:g}", verdict(find_s <= MAX_FIND_S), len(found)),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"smoke test: {QUICK_ROWS:,} rollouts")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        line = measure(QUICK_ROWS if options.quick else ROWS, Path(temporary))
    head = ["", "MB", "read, CPU s", "target", "", "find, CPU s", "target", "", "findings"]
    table("findings, one process", head, [line])


if __name__ == "__main__":
    main()
