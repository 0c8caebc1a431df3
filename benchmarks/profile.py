"""ng_reward_profile on 3,200 and 1,000,000 rollouts, and on rollouts with token ids: time, CPU, memory.

The rows have the format of Sokoban rollouts. To limit disk usage, each of the 1,000,000 rows has 1 kB (1 GB in the
temporary folder), because conversations contain only the fields that are counted. Rows with token ids have 20 kB;
20,000 of them suffice, because time grows linearly with bytes and memory with rows. Files are in the page cache when
they are read.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.commands import COMMANDS, BenchmarkError, cpu_of
from benchmarks.comparison import Figure, Measure, warmed_up
from benchmarks.processes import children, rss_mb
from benchmarks.tables import table, verdict

REPEATS = 16
TOKENS = 2600
"""Token ids per rollout; about 20 kB with their log-probabilities."""
EVERY_S = 0.02


@dataclass(frozen=True)
class Case:
    """A file to profile, with limits on CPU time and memory. Wall time has no limit: it depends on other processes."""

    title: str
    rows: int
    tokens: bool
    max_cpu_s: float
    max_mb: float


CASES = (
    Case("3,200 rollouts", 3_200, False, 2.0, 150.0),
    Case("1,000,000 rollouts", 1_000_000, False, 40.0, 600.0),
    Case("20,000 with token ids", 20_000, True, 12.0, 250.0),
)
QUICK = (
    Case("3,200 rollouts", 3_200, False, 2.0, 150.0),
    Case("1,000 with token ids", 1_000, True, 2.0, 200.0),
)


def rollouts(case: Case) -> Iterator[bytes]:
    rng = random.Random(0)
    ids = [rng.randrange(150_000) for _ in range(TOKENS)]
    token_fields: dict[str, Any] = {}
    if case.tokens:
        log_probs = [-round(rng.random(), 6) for _ in range(TOKENS // 3)]
        token_fields = {"prompt_token_ids": ids, "generation_token_ids": ids[: TOKENS // 3]}
        token_fields["generation_log_probs"] = log_probs
    for number in range(case.rows):
        task, repeat = divmod(number, REPEATS)
        calls = rng.randrange(11)
        success = rng.random() < 0.6
        items: list[dict[str, Any]] = [{"type": "function_call"}, {"type": "function_call_output"}] * calls
        model_s, tool_s = round(rng.random(), 6), round(rng.random(), 6)
        row = {
            "level_id": task + 1,
            "responses_create_params": {"input": "x" * 300, "temperature": 0.8},
            "agent_ref": {"name": "grl_sokoban_game_agent"},
            "_ng_task_index": task,
            "_ng_rollout_index": repeat,
            "response": {
                "output": [*items, {"type": "message", "role": "assistant", **token_fields}],
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


@contextmanager
def compared(commands: Path, folder: Path) -> Iterator[Measure]:
    """Yield what measures the CPU seconds for 30,000 rollouts."""
    path = folder / "rollouts.jsonl"
    with path.open("wb") as file:
        file.writelines(rollouts(Case("", 30_000, False, 0.0, 0.0)))
    command = [str(commands / "ng_reward_profile"), f"+jsonl_fpath={path}", f"+output_dir={folder / 'profile'}"]
    yield warmed_up(lambda _: {"ng_reward_profile": cpu_of(command, folder)})


FIGURE = Figure("ng_reward_profile of 30,000 rollouts", "CPU s", compared)


def measure(case: Case, folder: Path) -> list[object]:
    """Write the file, profile it, and delete it; return one row of the table."""
    path = folder / "rollouts.jsonl"
    with path.open("wb") as file:
        file.writelines(rollouts(case))
    size = path.stat().st_size
    command = [str(COMMANDS / "ng_reward_profile"), f"+jsonl_fpath={path}", f"+output_dir={folder / 'profile'}"]
    before, started = os.times(), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, _memory(process.pid))
        time.sleep(EVERY_S)
    took, after = time.monotonic() - started, os.times()
    output = process.stdout.read() if process.stdout else ""
    path.unlink()
    if process.returncode != 0 or f"{case.rows:,} measured" not in output:
        raise BenchmarkError(f"ng_reward_profile: {output}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    used = [cpu, f"<={case.max_cpu_s:g}", verdict(cpu <= case.max_cpu_s)]
    return [case.title, size / 1e6, took, *used, peak, f"<={case.max_mb:g}", verdict(peak <= case.max_mb)]


def _memory(pid: int) -> float:
    """Return the RSS in MB of the command and its reader processes."""
    try:
        return sum(map(rss_mb, (pid, *children(pid))))
    except (OSError, IndexError):
        return 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: few rollouts")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        lines = [measure(case, Path(temporary)) for case in (QUICK if options.quick else CASES)]
    head = ["", "MB", "s", "CPU s", "target", "", "RSS MB", "target", ""]
    table("ng_reward_profile, all processes", head, lines)


if __name__ == "__main__":
    main()
