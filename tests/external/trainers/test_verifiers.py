"""vf-eval of verifiers plays our environments through its NeMoGymTaskset, with our built-in model as its endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollyard
from tests.support.background_loop import background_loop
from tests.support.coming_from import MODEL, endpoint, our_rewards, pair, run_lines
from tests.support.commands import BIN
from tests.support.doc_pages import page
from tests.support.scripted_engine import listening
from tests.support.stacks import SOKOBAN, read_rows
from tests.support.waiting import deadline_s

ROOT = Path(rollyard.__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Sokoban with its agent and the built-in model, and GSM8K without an agent."""
    gsm8k = {"gsm8k_resources_server": {"resources_servers": {"gsm8k": {"entrypoint": "app.py"}}}}
    with background_loop() as run:
        running = rollyard.stack([SOKOBAN, gsm8k], colocate=True, folder=tmp_path_factory.mktemp("stack"))
        run(running.start())
        yield running
        run(running.stop())


TASKSET = """
import verifiers.v1 as vf

__all__ = ["Sums"]


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for number in range(3):
            yield SumTask(Sum(prompt=f"What is 5 + {number}?", answer=str(5 + number)), self.config.task)
"""


async def test_the_pair_of_the_page_gives_as_many_rollouts_with_the_same_rewards(tmp_path: Path) -> None:
    (tmp_path / "my_taskset.py").write_text(TASKSET)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"task_index": {number}}}\n' for number in range(3)))
    installed = {"PYTHONPATH": str(tmp_path)}
    async with listening(endpoint(lambda request: "5")) as url:
        found = pair("verifiers", {MODEL: url})
        await run_lines(found.theirs, tmp_path, BIN, installed)
        await run_lines(found.ours, tmp_path, BIN, installed)
    [traces] = (tmp_path / "results" / "theirs").glob("*/traces.jsonl")
    played = [trace for episode in read_rows(traces) for trace in episode["traces"]]
    assert all(not trace["errors"] for trace in played), played
    theirs = sorted(trace["rewards"]["right"]["score"] for trace in played)
    assert theirs == our_rewards(tmp_path) == [0.0, 0.0, 1.0, 1.0]


def evaluate(stack: Any, server: str, dataset: str, folder: Path) -> list[dict[str, Any]]:
    """The traces of two tasks, evaluated with the configuration that docs/trainers.md shows."""
    [config] = [block for block in page("trainers.md").split("```") if block.startswith("toml\n")]
    for documented, here in (
        ("http://127.0.0.1:8001", stack.url(server)),
        ("http://127.0.0.1:8002", stack.url("policy_model")),
        ("resources_servers/grl_sokoban/data/example.jsonl", str(ROOT / dataset)),
    ):
        assert documented in config
        config = config.replace(documented, here)
    file = folder / "eval.toml"
    file.write_text(config.removeprefix("toml\n"))
    # verifiers starts its harness with uv, which is in the same environment.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "POLICY_API_KEY": "none"}
    command = [str(Path(sys.executable).with_name("vf-eval")), "@", str(file), "--no-rich"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=8 * deadline_s(), env=environ, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    [traces] = folder.glob("outputs/*/traces.jsonl")
    return [trace for episode in read_rows(traces) for trace in episode["traces"]]


def test_sokoban_is_played_with_its_tool_and_solved(stack: Any, tmp_path: Path) -> None:
    traces = evaluate(
        stack, "grl_sokoban_resources_server", "resources_servers/grl_sokoban/data/example.jsonl", tmp_path
    )
    assert len(traces) == 2
    for trace in traces:
        assert not trace["errors"], trace["errors"]
        assert trace["metrics"]["success"] == 1.0 and trace["metrics"]["moves"] >= 1
        assert trace["info"]["nemo_gym"]["success"] is True


def test_answers_to_gsm8k_are_verified(stack: Any, tmp_path: Path) -> None:
    traces = evaluate(stack, "gsm8k_resources_server", "resources_servers/gsm8k/data/example.jsonl", tmp_path)
    assert len(traces) == 2
    for trace in traces:
        assert not trace["errors"], trace["errors"]
        verdict = trace["info"]["nemo_gym"]
        assert verdict["extracted_answer"].isdecimal()  # the built-in model answers with some number
        is_right = verdict["extracted_answer"] == verdict["expected_answer"]
        assert trace["rewards"]["nemo_gym"]["score"] == float(is_right)
