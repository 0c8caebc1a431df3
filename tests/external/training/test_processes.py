"""Two processes, each with all weights or with a part of them (FSDP), compute the same update as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.training.update import micro_batches
from tests.external.training.sampled_stack import initial_model
from tests.external.training.tiny_policy import make_model
from tests.external.training.train_command import training_s
from tests.external.training.train_sharded import BUDGETS, SHARDED, train
from tests.external.training.training_process import curve, finished, start_two
from tests.external.training.training_runs import make_update

ACCELERATE = (
    *("-m", "accelerate.commands.launch", "--config_file", str(INSTALLED / "configs" / "accelerate_fsdp.yaml")),
    *("--num_processes", "2", "--num_cpu_threads_per_process", "1", "--main_process_port", "0"),
)


def train_sharded(folder: Path) -> None:
    environ = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *ACCELERATE, "-m", "tests.external.training.train_sharded", str(folder), *SHARDED]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=training_s(), env={**os.environ, **environ}, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of all kinds, and with the runs `one` and `two`, of which the second was killed."""
    folder = tmp_path_factory.mktemp("two")
    initial_model(folder / "model")
    runs = [run(folder, "one"), run(folder, "two", ("playing", 3))]
    kinds = [kind for kind in BUDGETS if kind not in SHARDED]
    first, second = start_two(folder / "log", runs, folder, kinds)
    assert finished(first) == -9, (folder / "log").read_text()[-3000:]
    second.kill()  # as a launcher does
    train_sharded(folder)
    return folder


def run(folder: Path, name: str, at: tuple[str, int] = ("", 0)) -> Json:
    settings = {
        "model": str(folder / "model"),
        "output_dir": str(folder / name),
        "max_steps": 3,
        "checkpoint_interval": 1,
        "optimizer": {"learning_rate": 1e-2, "max_seq_len": 64, "micro_token_budget": 64},
        "loggers": [],
    }
    return {"settings": settings, "at": at}


@pytest.mark.parametrize("kind", BUDGETS)
def test_two_processes_compute_the_same_update_as_one_and_save_whole_weights(
    kind: str, of_two_processes: Path, tmp_path: Path
) -> None:
    parts = micro_batches([one.length for one in make_update(make_model(), count=3).sequences], BUDGETS[kind])
    assert len(parts) % 2 == 1, "one process must have a micro-batch that does not count"
    figures = json.loads((of_two_processes / kind / "figures.json").read_text())
    assert figures.pop("processes") == 2 and (figures.pop("sharded") > 20) is (kind in SHARDED)
    assert figures == pytest.approx(train(tmp_path, kind, 4096).update_metrics, rel=1e-4)
    for name in ("policy/model", *(["adapters/adapter_model"] if kind == "adapters" else [])):
        shared, whole = (load_file(folder / f"{name}.safetensors") for folder in (of_two_processes / kind, tmp_path))
        assert shared.keys() == whole.keys()
        for key, value in whole.items():
            assert torch.allclose(shared[key], value, atol=1e-5), key


def test_a_run_of_two_processes_resumes_with_the_curve_of_an_unbroken_one(of_two_processes: Path) -> None:
    assert 3 not in curve(of_two_processes / "two")
    log = of_two_processes / "resumed.log"
    processes = start_two(log, [run(of_two_processes, "two")], of_two_processes, [])
    assert [finished(process) for process in processes] == [0, 0], log.read_text()[-3000:]
    assert curve(of_two_processes / "two") == curve(of_two_processes / "one")
    assert sorted(curve(of_two_processes / "one")) == [0, 1, 2, 3]
    [*_, saved] = sorted((of_two_processes / "two" / "checkpoints").glob("step_*"))
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in saved.iterdir()}
