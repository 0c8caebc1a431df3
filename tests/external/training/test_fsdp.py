"""Two processes that share the weights between them (FSDP) compute the same update as one that has all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import rollyard
from rollyard.records.search_path import INSTALLED
from tests.external.training.train_command import training_s
from tests.external.training.train_sharded import train

CONFIG = INSTALLED / "configs" / "accelerate_fsdp.yaml"
SOURCE = Path(rollyard.__file__).parent.parent
LAUNCH = ("-m", "accelerate.commands.launch", "--config_file", str(CONFIG))


FILES = {"all": ["policy/model"], "adapters": ["policy/model", "adapters/adapter_model"]}
"""What is saved in each mode of train_sharded.py."""


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of both modes; torch is imported once in each process."""
    folder = tmp_path_factory.mktemp("two")
    options = ["--num_processes", "2", "--num_cpu_threads_per_process", "1", "--main_process_port", "0"]
    program = ["-m", "tests.external.training.train_sharded", str(folder), "110", *FILES]
    environ = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, *LAUNCH, *options, *program], capture_output=True, text=True, timeout=training_s(), env=environ
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("mode", FILES)
def test_sharded_weights_change_as_whole_ones_do_and_are_saved_whole(
    mode: str, of_two_processes: Path, tmp_path: Path
) -> None:
    two, one = of_two_processes / mode, tmp_path
    figures = json.loads((two / "figures.json").read_text())
    assert figures.pop("processes") == 2 and figures.pop("sharded") > 20
    trainer = train(one, mode, 4096)
    assert figures == pytest.approx(trainer.update_metrics, rel=1e-4)
    for name in FILES[mode]:
        shared, whole = load_file(two / f"{name}.safetensors"), load_file(one / f"{name}.safetensors")
        assert shared.keys() == whole.keys()
        for key, value in whole.items():
            assert torch.allclose(shared[key], value, atol=1e-5), key
