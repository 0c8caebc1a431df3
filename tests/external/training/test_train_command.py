"""ng_train with a real engine: from the command to the trained policy, and what happens when something is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import orjson
import pytest

from tests.external.training.train_command import OF_ONE_STEP, hold_after, ng_train, training_s, vowels, write_folder
from tests.external.vllm.engine import Engine
from tests.external.vllm.local_run import ENGINE_CORE
from tests.support.coming_from import pair, run_lines
from tests.support.commands import BIN
from tests.support.stacks import read_rows
from tests.support.waiting import eventually


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    write_folder(tmp_path, tiny_model)
    return tmp_path


SCORE = """
import json

from pathlib import Path


def score(completions, **columns):
    letters = [[letter for letter in text.lower() if letter.isalpha()] for text in completions]
    rewards = [sum(one in "aeiou" for one in each) / len(each) if each else 0.0 for each in letters]
    with Path("scored.jsonl").open("a") as scored:
        scored.writelines(json.dumps({"reward": reward}) + "\\n" for reward in rewards)
    return rewards
"""
"""The reward of the environment `letters` as a function for TRL."""


@pytest.fixture
def shared_engine(folder: Path, engine: Engine) -> str:
    """Arguments with which the servers use the engine of the session instead of starting one."""
    settings = f"{{entrypoint: app.py, base_url: {engine.url}/v1, api_key: EMPTY, model: tiny}}"
    (folder / "own.yaml").write_text(f"policy_model:\n  responses_api_models:\n    vllm_model: {settings}\n")
    return "config_paths=[own.yaml]"


def test_a_training_survives_the_death_of_its_engine_and_of_its_environment(folder: Path) -> None:
    """The new engine has to load the adapter of the first update."""
    options = ("evaluation.input_jsonl_fpath=rows.jsonl", "evaluation.limit=2", "evaluation.before_start=false")
    adapters = "optimizer.lora={rank: 4}"
    hold_after(OF_ONE_STEP, folder)
    with ng_train("config_paths=[small_engine.yaml]", *options, adapters, folder=folder) as running:
        environment = running.until_held()
        os.kill(environment, signal.SIGKILL)
        (core,) = running.pids(ENGINE_CORE)
        os.kill(core, signal.SIGKILL)
        eventually("a new engine", lambda: core not in running.pids(ENGINE_CORE), training_s())
        running.release()
        assert running.wait() == 0, running.printed
        assert running.left() == []
        steps = running.steps()
        assert sorted(steps) == [1, 2]
        for step, metrics in steps.items():
            rows = running.rows(step)
            assert len(rows) == 8 and all(row["reward"] == pytest.approx(vowels(row)) for row in rows)
            assert metrics["train/reward"] == pytest.approx(sum(row["reward"] for row in rows) / 8)
            assert metrics["train/ratio_max"] == pytest.approx(1.0, abs=1e-3) and metrics["train/grad_norm"] > 0
            assert metrics["train/parity_max"] < 1e-3 and not metrics["train/failed_rollouts"]
        failures = (running.output / "rollouts" / "step_000002_failures.jsonl").read_text()
        assert "letters_resources_server" in failures
        for text in ("agent      letters_agent", "servers    ready, head at", "step 2/2", "complete, 2 updates"):
            assert text in running.printed
        assert "Warning" not in running.printed and str(folder) not in running.printed
        assert {"ng_run.log", "letters_agent.log", "policy_model-engine-0.log"} <= {
            path.name for path in (running.output / "logs").iterdir()
        }


def test_the_death_of_the_servers_is_explained_and_the_same_command_continues(folder: Path, shared_engine: str) -> None:
    hold_after(OF_ONE_STEP, folder)
    with ng_train(shared_engine, "checkpoint_interval=1", folder=folder) as running:
        running.until_step(1)
        running.until_held()
        found = [pid for pid in running.pids("entry ng_run") if "process_group" not in _command(pid)]
        (servers,) = [pid for pid in found if _parent(pid) not in found]  # the others are its forks
        os.kill(servers, signal.SIGKILL)
        assert running.wait() == 1, running.printed
        assert "killed by signal 9" in running.printed and "out/logs/ng_run.log" in running.printed
        running.release()
        first = running.steps()[1]
    with ng_train(shared_engine, "checkpoint_interval=1", folder=folder) as running:
        assert running.wait() == 0, running.printed
        assert sorted(running.steps()) == [1, 2] and running.steps()[1] == first
        turns = [item for row in running.rows(2) for item in row["response"]["output"] if "token_trace" in item]
        assert {turn["token_trace"]["sampling"]["policy_version"] for turn in turns} == {"step_000001-r1"}
        assert "after 1 updates" in running.printed
        assert len(orjson.loads((folder / "out" / "run.json").read_bytes())["starts"]) == 2


def test_ctrl_c_ends_a_training_with_a_checkpoint_and_leaves_a_running_stack_alone(
    folder: Path, shared_engine: str
) -> None:
    hold_after(OF_ONE_STEP, folder)
    with ng_train(shared_engine, folder=folder) as running:
        running.until_step(1)
        running.until_held()
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 130, running.printed
        assert running.left() == []
        assert "interrupted after 1 update" in running.printed
        assert (running.output / "checkpoints" / "step_000001").is_dir()


def test_an_accelerate_config_of_one_process_trains(folder: Path, shared_engine: str) -> None:
    settings = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nuse_cpu: true\nnum_processes: 1\n"
    (folder / "accelerate.yaml").write_text(settings)
    accelerate = "optimizer.accelerate_config=accelerate.yaml"
    with ng_train(shared_engine, accelerate, "max_steps=1", folder=folder) as running:
        assert running.wait() == 0, running.printed
        assert running.left() == [] and sorted(running.steps()) == [1]
        assert running.printed.count("folder     out") == 1 and "complete, 1 update" in running.printed


async def test_the_pair_of_the_page_makes_as_many_updates_on_as_many_rollouts(folder: Path, shared_engine: str) -> None:
    names = {"my_model": "model", "my_environment": "letters"}
    (folder / "my_rows").mkdir()
    words = [row["word"] for row in read_rows(folder / "rows.jsonl")]
    rows = "".join(json.dumps({"prompt": f"Write {word}.", "word": word}) + "\n" for word in words)
    (folder / "my_rows" / "train.jsonl").write_text(rows)
    (folder / "my_rewards.py").write_text(SCORE)
    found = pair("TRL", names)
    [theirs], [ours] = found.theirs, found.ours
    here = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    await run_lines([[*theirs, "--bf16", "False", "--use_cpu", "--report_to", "none"]], folder, BIN, here)
    await run_lines([[*ours, shared_engine]], folder, BIN, here)
    output = folder / "results" / "ours"
    played = [row for path in sorted((output / "rollouts").glob("step_00000?.jsonl")) for row in read_rows(path)]
    scored = read_rows(folder / "scored.jsonl")
    assert len(scored) == len(played) == 2 * OF_ONE_STEP
    assert all(row["reward"] == pytest.approx(vowels(row)) for row in played)
    [state] = (folder / "results" / "theirs").glob("checkpoint-*/trainer_state.json")
    steps = [row for row in read_rows(output / "metrics.jsonl") if "train/reward" in row]
    assert len(steps) == orjson.loads(state.read_bytes())["global_step"] == 2


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
