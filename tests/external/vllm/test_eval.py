"""`ng_eval` serves a real model with vLLM, is killed at ten random instants, and still collects each rollout once.

The test starts vLLM five times, and interrupts seven further starts early.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import orjson
import pytest

from rollyard.services.types import Json
from tests.external.vllm.engine import ENVIRONMENT
from tests.support.evaluations import EvalProcess, ng_eval
from tests.support.stacks import PUZZLES, keys_of, read_rows, reproducible_part
from tests.support.waiting import eventually

KILLS_AT_START = 7
KILLS_IN_COLLECTION = 3
TASKS, REPEATS = 200, 4
LONG_S = 900.0
"""For one attempt, on a busy machine."""


def arguments(model: Path) -> tuple[str, ...]:
    return (
        f"model=vllm/{model}",
        "vllm.dtype=float32",
        "vllm.max_model_len=4096",
        "vllm.args=[--enforce-eager,--kv-cache-memory-bytes,'134217728',--max-num-seqs,'32']",
        "environments=[grl_sokoban]",
        f"input_jsonl_fpath={PUZZLES}",
        f"num_repeats={REPEATS}",
        "num_repeats_add_seed=true",
        "num_samples_in_parallel=4",
        "responses_create_params.temperature=0",
        "responses_create_params.max_output_tokens=16",
        "colocate=true",
    )


def figures(folder: Path) -> Json:
    """The report's figures that depend on the rollouts only: no paths, no times."""
    run: Json = orjson.loads((folder / "reward_analysis.json").read_bytes())["runs"][0]
    assert run["coverage"]["measured"] == run["coverage"]["expected"] == TASKS * REPEATS
    return {name: run.get(name) for name in ("coverage", "solved", "rewards", "tool_calls", "turns", "by_dataset")}


@pytest.fixture(scope="module")
def unbroken(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    with ng_eval(*arguments(tiny_model), cwd=folder, output="out", env=ENVIRONMENT) as running:
        assert running.wait(LONG_S) == 0, running.printed
        running.leaves_nothing()
    return folder / "out"


def test_the_logs_of_an_unbroken_run_contain_no_error(unbroken: Path) -> None:
    assert {path.name for path in (unbroken / "logs").iterdir()} == {
        *("vllm_server.log", "nemo_gym_servers.log", "rollout_collection.log", "reward_analysis.log")
    }
    found = [line for log in (unbroken / "logs").iterdir() for line in log.read_text().splitlines()]
    # Printed by vLLM where the limit on open files is low and cannot be raised.
    assert not [line for line in found if "error" in line.lower() and "Found ulimit" not in line]


def test_an_evaluation_killed_at_ten_random_instants_collects_every_rollout_once(
    tiny_model: Path, tmp_path: Path, unbroken: Path
) -> None:
    rng = random.Random("kill ng_eval and vLLM")
    instants = ["start"] * KILLS_AT_START + ["collection"] * KILLS_IN_COLLECTION
    rng.shuffle(instants)
    for number, instant in enumerate([*instants, ""]):
        with ng_eval(*arguments(tiny_model), cwd=tmp_path, output="out", env=ENVIRONMENT) as running:
            if not instant:
                assert running.wait(LONG_S) == 0, running.printed
                running.leaves_nothing()
                break
            _wait_for_instant(running, instant, rng)
            if number % 2:
                running.kill_everything()
            else:  # the rest must end without help
                os.kill(running.process.pid, signal.SIGKILL)
                running.process.wait()
            running.leaves_nothing()
    rows = read_rows(tmp_path / "out/rollouts.jsonl")
    assert keys_of(rows) == [(task, repeat) for task in range(TASKS) for repeat in range(REPEATS)]
    assert _essences(tmp_path / "out") == _essences(unbroken)
    assert figures(tmp_path / "out") == figures(unbroken)


def _wait_for_instant(running: EvalProcess, instant: str, rng: random.Random) -> None:
    if instant == "start":
        time.sleep(rng.uniform(0.0, 8.0))
    else:
        before = running.rows()
        eventually("it collects", lambda: running.rows() > before or running.process.poll() is not None, LONG_S)
        time.sleep(rng.uniform(0.0, 1.0))
    assert running.process.poll() is None, running.printed


def _essences(folder: Path) -> dict[tuple[int, int], Json]:
    rows = read_rows(folder / "rollouts.jsonl")
    return {(row["_ng_task_index"], row["_ng_rollout_index"]): reproducible_part(row) for row in rows}
