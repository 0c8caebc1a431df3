"""Several processes compute the same update as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rollyard.records.types import Json
from rollyard.training.micro_batches import micro_batches
from tests.external.training.sampled_stack import initial_model
from tests.external.training.tiny_policy import make_model
from tests.external.training.train_command import training_s
from tests.external.training.training_process import curve
from tests.external.training.training_runs import make_update, trained

TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("--local-addr", "127.0.0.1", "-m"),  # by default the host's name, which a machine may not be able to resolve
]


KINDS = [("gspo", 110), ("dapo", 110), ("grpo", 4096)]
"""(algorithm, micro_token_budget)"""


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of all KINDS; torch is imported once in each process."""
    folder = tmp_path_factory.mktemp("two")
    arguments = [str(folder), *(f"{name}:{budget}" for name, budget in KINDS)]
    run_in_two("train_once", *arguments)
    return folder


def run_in_two(program: str, *arguments: str, succeeds: bool = True) -> None:
    environ = {**os.environ, "ACCELERATE_USE_CPU": "true", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*TORCHRUN, f"tests.external.training.{program}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=training_s(), env=environ)
    assert (done.returncode == 0) is succeeds, done.stderr[-3000:]


@pytest.mark.parametrize(("name", "micro_token_budget"), KINDS)
def test_two_processes_compute_the_same_update_as_one(
    name: str, micro_token_budget: int, of_two_processes: Path, tmp_path: Path
) -> None:
    parts = micro_batches([one.length for one in make_update(make_model(), count=3).sequences], micro_token_budget)
    assert len(parts) % 2 == 1, "one process must have a micro-batch that does not count"
    state, metrics = torch.load(of_two_processes / f"{name}.pt", weights_only=True)
    model = make_model()
    one = trained(model, [make_update(model, count=3)], tmp_path, loss={"algorithm": name})
    assert metrics == pytest.approx(one.update_metrics, rel=1e-4)
    for key, value in one.model.state_dict().items():
        assert torch.allclose(state[key], value, atol=1e-5), key


def test_a_run_of_two_processes_resumes_with_the_curve_of_an_unbroken_one(tmp_path: Path) -> None:
    model = initial_model(tmp_path / "model")

    def run(name: str, at: tuple[str, int] = ("", 0)) -> Json:
        settings = {
            "model": str(model),
            "output_dir": str(tmp_path / name),
            "max_steps": 3,
            "checkpoint_interval": 1,
            "optimizer": {"learning_rate": 1e-2, "max_seq_len": 64, "micro_token_budget": 64},
            "loggers": [],
        }
        return {"settings": settings, "at": at}

    run_in_two("training_process", json.dumps([run("one"), run("two", ("playing", 3))]), succeeds=False)
    run_in_two("training_process", json.dumps([run("two")]))
    assert curve(tmp_path / "two") == curve(tmp_path / "one")
    assert sorted(curve(tmp_path / "one")) == [0, 1, 2, 3]
    [*_, saved] = sorted((tmp_path / "two" / "checkpoints").glob("step_*"))
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in saved.iterdir()}
