"""What `--concurrency auto` makes of a real vLLM on the CPU, beside numbers of concurrent rollouts set by hand.

    make bench-vllm

A small language model plays Sokoban rooms (examples/sokoban_policy). Tokens per CPU second of the engine say more than
its throughput, which the other processes of the host lower: with more rollouts, a step generates more tokens at once.
Each number is played in turn, and from the first rollout to the last: `auto` includes its search.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import workloads
from benchmarks.commands import COMMANDS, ROOT, BenchmarkError, Config, ModelEndpoint, Run, collect, stack
from benchmarks.processes import family_cpu_s
from benchmarks.tables import table, verdict
from tests.external.vllm.engine import ENVIRONMENT, start_s
from tests.support.processes import free_port
from tests.support.waiting import eventually

MODEL, NAME = ROOT / "examples" / "sokoban_policy" / "model", "sokoban-policy"
MOVES = 31
BY_HAND = (16, 32, 64, 128)
SHARE = 0.95
TOKENS, STEPS = "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count"


@contextmanager
def engine(log: Path) -> Iterator[ModelEndpoint]:
    """Serve the model with room for 64 calls at once."""
    port = free_port()
    command = [str(COMMANDS / "vllm"), "serve", str(MODEL), "--served-model-name", NAME, "--dtype", "float32"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "64", "--kv-cache-memory-bytes", "268435456"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enforce-eager"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **ENVIRONMENT})
    try:
        eventually("vLLM has started, or ended", lambda: process.poll() is not None or _is_ready(port), start_s())
        if process.poll() is not None:
            raise BenchmarkError(f"vLLM did not start:\n{log.read_text()[-3000:]}")
        yield ModelEndpoint(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


def counters(served: ModelEndpoint) -> list[float]:
    """Return the tokens generated, the steps, and the CPU seconds of the engine so far."""
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=60) as response:
        text = response.read().decode()
    found = [
        sum(float(value) for value in re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE))
        for name in (TOKENS, STEPS)
    ]
    return [*found, family_cpu_s(served.pid)]


def config(served: ModelEndpoint) -> Config:
    tree = workloads.game(served.url, max_steps=MOVES)
    tree["model"]["responses_api_models"]["vllm_model"].update(model=NAME, strict_tools=False)
    return tree


def played(run: Run, served: ModelEndpoint, rows: Path, parallel: int | str) -> tuple[list[float], int | None]:
    """Return by how much the counters rise, and the number that was found."""
    before = counters(served)
    collection = collect(run, workloads.AGENT, rows, parallel=parallel, repeats=1)
    collection.finish()
    grown = [after - first for after, first in zip(counters(served), before, strict=True)]
    return grown, collection.status().get("concurrency")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=400, help="of each measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each number (default: %(default)s)")
    options = parser.parse_args(arguments)
    names: list[int | str] = [*BY_HAND, "auto"]
    sums = {name: [0.0, 0.0, 0.0] for name in names}
    found: list[int | None] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = folder / "rooms.jsonl"
        make_rooms = [sys.executable, "-m", "examples.sokoban_policy.make_rooms"]
        make_rooms += ["--num-examples", str(options.rollouts), "--output", str(rows)]
        subprocess.run(make_rooms, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with engine(folder / "engine.log") as served, stack(folder, config(served)) as run:
            played(run, served, rows, 64)  # the first requests compile and fill caches
            for _ in range(options.rounds):
                for name in names:
                    grown, number = played(run, served, rows, name)
                    sums[name] = [before + more for before, more in zip(sums[name], grown, strict=True)]
                    found += [number] if name == "auto" else []
                    print(f"{name}: {grown[0] / grown[2]:.0f} tokens per CPU second", flush=True)
    per_cpu_s = {name: tokens / cpu_s for name, (tokens, _, cpu_s) in sums.items()}
    best = max(per_cpu_s[name] for name in BY_HAND)
    lines: list[list[object]] = []
    for name, (tokens, steps, _) in sums.items():
        share = per_cpu_s[name] / best
        target = [f">={SHARE:.0%}", verdict(share >= SHARE)] if name == "auto" else ["", ""]
        numbers = ", ".join(map(str, found)) if name == "auto" else ""
        lines.append([str(name), numbers, f"{per_cpu_s[name]:.0f}", f"{tokens / steps:.1f}", f"{share:.0%}", *target])
    title = f"vLLM on the CPU, {options.rollouts} rollouts"
    table(title, ["parallel", "found", "tokens per CPU s", "tokens per step", "share", "target", ""], lines)


if __name__ == "__main__":
    main()
