"""A whole training on real servers and a real vLLM: play, train, publish, evaluate, save, resume."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio.from_thread
import orjson
import pytest
import yaml

from rollyard.records.types import Json
from rollyard.services.datasets.tasks import TaskFile
from rollyard.training.run_folder import TrainingFolder
from rollyard.training.train import MainProcess, train
from rollyard.training.train_config import TrainConfig
from rollyard.training.trl.policy_trainer import TrlPolicyTrainer
from tests.external.training.conftest import StartStack
from tests.support.fixtures import make_folder
from tests.support.stacks import read_rows

GRADED = """
from rollyard.resources_servers.base import Environment, Verdict, Verification, serve
from rollyard.resources_servers.environment import EnvironmentSettings

class Graded(Environment[EnvironmentSettings]):
    async def verify(self, response: Verification) -> Verdict:
        share = sum(letter.islower() for letter in response.text) / max(1, len(response.text))
        return Verdict(reward=share, success=share > 0.5)

server = serve(Graded)
"""


def write_environment(folder: Path) -> None:
    """Write graded.yaml, whose reward is the share of lower-case letters in the response, and rows.jsonl."""
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "graded"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    tree = {
        "graded": {"resources_servers": {make_folder(folder, app=GRADED): {"entrypoint": "app.py"}}},
        "writer": {"agents": {"simple_agent": agent}},
    }
    (folder / "graded.yaml").write_text(yaml.safe_dump(tree))
    rows = ({"responses_create_params": {"input": [{"role": "user", "content": f"task {n}"}]}} for n in range(8))
    (folder / "rows.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def test_a_training_plays_learns_publishes_evaluates_and_resumes(
    start_stack: StartStack, tiny_model: Path, tmp_path: Path
) -> None:
    write_environment(tmp_path)
    served = start_stack(environments=("graded.yaml",), roots=(tmp_path,))
    tasks = TaskFile(tmp_path / "rows.jsonl", agent="writer", limit=None)
    lines: list[str] = []

    def run(max_steps: int) -> str:
        config = TrainConfig(
            model=str(tiny_model),
            output_dir=tmp_path / "run",
            agent_name="writer",
            max_steps=max_steps,
            groups_per_step=2,
            group_size=4,
            responses_create_params={"temperature": 1.0, "max_output_tokens": 8},
            evaluation={"responses_create_params": {"temperature": 0.0, "max_output_tokens": 8}, "interval": 0},
            endings={"finish_reasons": {"length": "played"}},
            optimizer={"learning_rate": 1e-3},
            loggers=(),
        )
        with (
            TrainingFolder.opened(config, command=["test"], project=tmp_path, print_line=lines.append) as folder,
            anyio.from_thread.start_blocking_portal() as portal,
            portal.wrap_async_context_manager(served.connected()) as stack,
        ):
            main = MainProcess(folder, portal, stack, tasks, evaluation_tasks=tasks)
            trainer = partial(TrlPolicyTrainer, config, tmp_path / "run" / "trl")
            return train(config, main, trainer, print_line=lines.append)

    assert run(2) == "complete", lines
    assert run(3) == "complete", lines
    found = read_rows(tmp_path / "run" / "metrics.jsonl")
    steps = [line for line in found if "train/reward" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["train/parity_mean"] < 1e-3 and line["train/grad_norm"] > 0 for line in steps)
    assert all(line["train/ratio_max"] == pytest.approx(1.0, abs=1e-3) for line in steps)
    assert [line["step"] for line in found if "eval/accuracy" in line] == [0, 2, 3]
    played = read_rows(tmp_path / "run" / "rollouts" / "step_000003.jsonl")
    assert {version for row in played for version in versions_of(row)} == {"step_000002-r1"}
    assert len(read_rows(tmp_path / "run" / "evaluations" / "step_000003.jsonl")) == 8


def versions_of(row: Json) -> list[str]:
    """The version of the weights of each turn."""
    output = row["response"]["output"]
    return [item["token_trace"]["sampling"]["policy_version"] for item in output if "token_trace" in item]
