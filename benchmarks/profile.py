"""ng_reward_profile on 3,200 and 1,000,000 rollouts, and on rollouts that carry token ids: time, CPU, memory.

Rows are Sokoban's in form. To bound the disk those of the million are 1 kB each (1 GB in the temporary folder), their
conversations cut to what is counted; with token ids a row has 20 kB, and 20,000 of them stand for any number: time
grows with the bytes, memory with the rows. Files are in the page cache when they are read.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.commands import COMMANDS, Broken
from benchmarks.processes import children, rss_mb
from benchmarks.tables import table, verdict

REPEATS = 16
TOKENS = 2600
"""Token ids of a rollout; with their log-probabilities some 20 kB."""
EVERY_S = 0.02


@dataclass(frozen=True)
class Case:
    """A file to profile, and what it may take of the machine: CPU, because time tells who else uses it."""

    title: str
    rows: int
    tokens: bool
    most_cpu_s: float
    most_mb: float


CASES = (
    Case("3,200 rollouts", 3_200, False, 2.0, 150.0),
    Case("1,000,000 rollouts", 1_000_000, False, 40.0, 600.0),
    Case("20,000 with token ids", 20_000, True, 12.0, 250.0),
)
QUICK = (
    Case("3,200 rollouts", 3_200, False, 2.0, 150.0),
    Case("20,000 rollouts", 20_000, False, 4.0, 200.0),
    Case("1,000 with token ids", 1_000, True, 2.0, 200.0),
)


def rollouts(case: Case) -> Iterator[bytes]:
    """Its lines."""
    dice = random.Random(0)
    ids = [dice.randrange(150_000) for _ in range(TOKENS)]
    carried: dict[str, Any] = {}
    if case.tokens:
        log_probs = [-round(dice.random(), 6) for _ in range(TOKENS // 3)]
        carried = {"prompt_token_ids": ids, "generation_token_ids": ids[: TOKENS // 3]}
        carried["generation_log_probs"] = log_probs
    for number in range(case.rows):
        task, repeat = divmod(number, REPEATS)
        calls = dice.randrange(11)
        success = dice.random() < 0.6
        items: list[dict[str, Any]] = [{"type": "function_call"}, {"type": "function_call_output"}] * calls
        model_s, tool_s = round(dice.random(), 6), round(dice.random(), 6)
        row = {
            "level_id": task + 1,
            "responses_create_params": {"input": "x" * 300, "temperature": 0.8},
            "agent_ref": {"name": "grl_sokoban_game_agent"},
            "_ng_task_index": task,
            "_ng_rollout_index": repeat,
            "response": {
                "output": [*items, {"type": "message", "role": "assistant", **carried}],
                "usage": {"input_tokens": 400 * calls, "output_tokens": 30, "total_tokens": 400 * calls + 30},
                "model": "builtin",
            },
            "finish_reason": "done" if success else "answered",
            "truncated": False,
            "timings": {
                "seed_s": 0.0001,
                "model_s": model_s,
                "tool_s": tool_s,
                "verify_s": 0.0002,
                "model_calls": calls + 1,
                "tool_calls": calls,
                "total_s": model_s + tool_s + 0.001,
            },
            "reward": round(11.0 - 0.1 * calls, 1) if success else round(-0.1 * calls, 1),
            "success": success,
        }
        if case.tokens:
            row["token_trail"] = {"turns": calls, "breaks": 0, "segments": 1}
        yield orjson.dumps(row) + b"\n"


def measure(case: Case, folder: Path) -> list[object]:
    """Write the file, profile it, and take it away again; the table's line."""
    path = folder / "rollouts.jsonl"
    with path.open("wb") as file:
        file.writelines(rollouts(case))
    size = path.stat().st_size
    line = [str(COMMANDS / "ng_reward_profile"), f"+jsonl_fpath={path}", f"+output_dir={folder / 'profile'}"]
    before, began = os.times(), time.monotonic()
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    most = 0.0
    while process.poll() is None:
        most = max(most, _memory(process.pid))
        time.sleep(EVERY_S)
    took, after = time.monotonic() - began, os.times()
    said = process.stdout.read() if process.stdout else ""
    path.unlink()
    if process.returncode != 0 or f"{case.rows:,} measured" not in said:
        raise Broken(f"ng_reward_profile: {said}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    used = [cpu, f"<={case.most_cpu_s:g}", verdict(cpu <= case.most_cpu_s)]
    return [case.title, size / 1e6, took, *used, most, f"<={case.most_mb:g}", verdict(most <= case.most_mb)]


def _memory(pid: int) -> float:
    """RSS in MB of the command and the processes that read for it."""
    try:
        return sum(map(rss_mb, (pid, *children(pid))))
    except (OSError, IndexError):
        return 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: 20,000 rollouts instead of 1,000,000")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        lines = [measure(case, Path(temporary)) for case in (QUICK if options.quick else CASES)]
    head = ["", "MB", "s", "CPU s", "target", "", "RSS MB", "target", ""]
    table("ng_reward_profile: all of its processes together", head, lines)


if __name__ == "__main__":
    main()
