"""An evaluation whose parts are killed with SIGKILL: it continues, and its output equals that of an unbroken run."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import orjson
import pytest

from rollyard.records.types import Json
from tests.support.checkpoints import write_checkpoint
from tests.support.evaluations import EvalProcess, ng_eval
from tests.support.stacks import keys_of, read_rows
from tests.support.waiting import eventually

from .harness import essences

FAKE = Path(__file__).parents[2] / "support" / "fake_vllm.py"
CONFIG = "configs/sokoban_eval.yaml"
KILLS = 6
SEEDED = (
    *(CONFIG, "limit=100", "num_repeats=8", "num_repeats_add_seed=true", "colocate=true", "pause_s=0"),
    "policy_model.responses_api_models.builtin_model.latency_s=0.005",
)
"""800 rollouts that are equal in each run, and slow enough to be interrupted."""


def figures(folder: Path) -> Json:
    """The report without what differs between two runs of the same rollouts: paths and times."""
    run: Json = orjson.loads((folder / "reward_analysis.json").read_bytes())["runs"][0]
    assert run["coverage"]["measured"] == run["coverage"]["expected"] == 800
    names = ("coverage", "solved", "rewards", "tool_calls", "turns", "by_dataset")
    return {name: run[name] for name in names if name in run}


def collects_more(running: EvalProcess) -> None:
    before = running.rows()
    eventually("it collects", lambda: running.rows() > before or running.process.poll() is not None)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    with ng_eval(*SEEDED, cwd=folder, output="out") as running:
        assert running.wait() == 0, running.printed
    return folder / "out"


def test_an_evaluation_killed_with_everything_at_random_instants_continues(tmp_path: Path, unbroken: Path) -> None:
    rng = random.Random("kill ng_eval")
    kills = 0
    while True:
        with ng_eval(*SEEDED, cwd=tmp_path, output="out") as running:
            if kills < KILLS:
                if rng.random() < 0.3:  # while the servers start
                    time.sleep(rng.uniform(0.0, 3.0))
                else:
                    collects_more(running)
                    time.sleep(rng.uniform(0.0, 0.1))
            if kills == KILLS or running.process.poll() is not None:
                assert running.wait() == 0, running.printed
                break
            if kills % 2:
                running.kill_everything()
            else:  # the kernel ends the others
                os.kill(running.process.pid, signal.SIGKILL)
                running.process.wait()
            running.leaves_nothing()
            kills += 1
    assert kills >= KILLS / 2
    assert essences(tmp_path / "out/rollouts.jsonl") == essences(unbroken / "rollouts.jsonl")
    assert figures(tmp_path / "out") == figures(unbroken)


@pytest.mark.parametrize("victim", ["ng_run", "ng_collect_rollouts", "process group leader of ng_run"])
def test_a_killed_part_leads_to_another_attempt(tmp_path: Path, unbroken: Path, victim: str) -> None:
    with ng_eval(*SEEDED, cwd=tmp_path, output="out") as running:
        running.collects()
        is_leader = victim.startswith("process")
        os.kill(running.guard_of("ng_run") if is_leader else running.program(victim), signal.SIGKILL)
        assert running.wait() == 0, running.printed
        assert is_leader or f"{victim} was killed by signal 9" in running.printed
        assert "attempt 2 of 20" in running.printed and running.state["attempt"] == 2
        running.leaves_nothing()
    assert essences(tmp_path / "out/rollouts.jsonl") == essences(unbroken / "rollouts.jsonl")


class ServedEval:
    """An evaluation that serves its model with the fake vLLM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        self.arguments = (
            f"model=vllm/{model}",
            f"vllm.command=[{sys.executable},{FAKE}]",
            "environments=[gsm8k]",
            *("num_repeats=40", "num_samples_in_parallel=2", "colocate=true", "pause_s=0"),
        )
        self.environment = {"FAKE_NOTES": str(self.notes)}

    def engine(self, number: int) -> Json:
        """The processes of a start of the fake."""
        note: Json = orjson.loads((self.notes / f"start-{number}.json").read_bytes())
        return note


@pytest.fixture
def served(tmp_path: Path) -> ServedEval:
    return ServedEval(tmp_path)


def finish(running: EvalProcess, served: ServedEval) -> None:
    assert running.wait() == 0, running.printed
    running.leaves_nothing()
    assert keys_of(read_rows(served.folder / "out/rollouts.jsonl")) == [(t, r) for t in range(5) for r in range(40)]


@pytest.mark.parametrize("victim", ["api", "core"])
def test_a_killed_engine_is_started_again_within_the_attempt(served: ServedEval, victim: str) -> None:
    with ng_eval(*served.arguments, cwd=served.folder, output="out", env=served.environment) as running:
        running.collects()
        os.kill(served.engine(1)[victim], signal.SIGKILL)
        finish(running, served)
        assert served.engine(2)["api"] and running.state["attempt"] == 1


def test_weights_that_were_replaced_before_a_restart_of_the_engine_are_not_mixed(served: ServedEval) -> None:
    write_checkpoint(served.folder / "model", seed=1)
    with ng_eval(*served.arguments, cwd=served.folder, output="out", env=served.environment) as running:
        running.collects()
        write_checkpoint(served.folder / "model", seed=2)
        os.kill(served.engine(1)["api"], signal.SIGKILL)
        assert running.wait() == 2, running.printed
        assert running.rows() < 200
        assert "was changed" in running.printed
        running.leaves_nothing()


@pytest.mark.parametrize(
    ("error", "exit_status", "starts"),
    [
        ("vllm serve: error: unrecognized arguments: --nonsense", 2, 1),
        ("RuntimeError: Failed to infer device type", 2, 1),
        ("CUDA out of memory", 1, 3),
    ],
)
def test_an_engine_that_cannot_start_ends_the_evaluation_after_attempts_that_make_sense(
    served: ServedEval, error: str, exit_status: int, starts: int
) -> None:
    message = served.folder / "message"
    message.write_text(error)
    environment = {**served.environment, "FAKE_FAILS": str(message)}
    with ng_eval(*served.arguments, cwd=served.folder, output="out", env=environment) as running:
        assert running.wait() == exit_status
        assert error in running.printed and "vllm_server.log" in running.printed
        assert running.state["state"] == "failed" and len(list(served.notes.iterdir())) == starts


def test_the_key_of_the_engine_is_in_no_command_line_and_no_file(served: ServedEval) -> None:
    key = "policy_api_key=the-key-of-the-engine"
    config = served.folder / "x.yaml"
    config.write_text(key.replace("=", ": "))
    given = ("x.yaml", *served.arguments)
    with ng_eval(*given, cwd=served.folder, output="out", env=served.environment) as running:
        running.collects()
        assert served.engine(1)["key"] == "the-key-of-the-engine"
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in running.pids()]
        assert not [line for line in lines if b"the-key-of" in line]
        finish(running, served)
    files = [path for path in served.folder.rglob("*") if path.is_file() and path.parent != served.notes]
    assert [path for path in files if b"the-key-of" in path.read_bytes()] == [config]


def test_a_watch_evaluates_each_checkpoint_once_and_survives_kill_9(served: ServedEval) -> None:
    for number in (1, 2):
        write_checkpoint(served.folder / f"checkpoints/step_{number}", seed=number)
    given = ("--watch", "checkpoints", "+once=true", *served.arguments[1:])
    first = served.folder / "out/step_1/rollouts.jsonl"
    with ng_eval(*given, cwd=served.folder, output="out", env=served.environment) as running:
        eventually("the first checkpoint is evaluated", lambda: first.exists() and first.stat().st_size > 0)
        os.kill(running.process.pid, signal.SIGKILL)
        running.leaves_nothing()
    for starts in (2, 0):
        before = len(list(served.notes.iterdir()))
        with ng_eval(*given, cwd=served.folder, output="out", env=served.environment) as running:
            assert running.wait() == 0, running.printed
        assert len(list(served.notes.iterdir())) - before == starts
    for number in (1, 2):
        assert len(keys_of(read_rows(served.folder / f"out/step_{number}/rollouts.jsonl"))) == 200
    assert "step_2" in (served.folder / "out/checkpoints.md").read_text()
