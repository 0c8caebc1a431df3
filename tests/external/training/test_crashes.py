"""A training that was killed and started again has the curve of one that was not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.script import EXIT_INTERRUPTED
from tests.external.training.sampled_stack import initial_model
from tests.external.training.training_process import curve, finished, start_training

STEPS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return initial_model(tmp_path_factory.mktemp("model"))


def settings(model: Path, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": str(model),
        "output_dir": folder,
        "max_steps": STEPS,
        "checkpoint_interval": 2,
        "loss": {"algorithm": "grpo"},
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 3, "max_seq_len": 64, "micro_token_budget": 64},
        "evaluation": {"interval": 2},
        "loggers": (),
        **more,
    }


@pytest.fixture(scope="module")
def unbroken(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, float]]:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert finished(start_training(settings(model, folder))) == 0, folder.with_suffix(".log").read_text()
    found = curve(folder)
    assert sorted(found) == list(range(STEPS + 1))
    assert len({metrics["train/reward"] for step, metrics in found.items() if step}) > 2, "nothing changes"
    return found


POINTS = [
    *(("published", 0), ("optimizing", 1), ("saving", 2), ("committed", 2)),
    *(("evaluating", 4), ("saving", 5), ("committed", 5)),
]
"""Points at which one run is killed, each time after it was started again. `saving`: the files of a checkpoint are half
written; `committed`: it has its name, but latest.json does not name it yet."""


def test_a_run_killed_at_many_points_has_the_curve_of_an_unbroken_one(
    model: Path, unbroken: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    given = settings(model, tmp_path / "run")
    for at in POINTS:
        assert finished(start_training(given, at)) == -9, f"{at}: {(tmp_path / 'run.log').read_text()}"
    assert finished(start_training(given)) == 0, (tmp_path / "run.log").read_text()
    assert curve(tmp_path / "run") == unbroken


def test_a_run_with_adapters_resumes_with_the_curve_of_an_unbroken_one(model: Path, tmp_path: Path) -> None:
    unbroken, broken = (settings(model, tmp_path / name, evaluation={}, max_steps=3) for name in ("one", "two"))
    for given in (unbroken, broken):
        given["optimizer"] |= {"lora": {"rank": 4, "dropout": 0.1}, "warmup_steps": 0}
    assert finished(start_training(unbroken)) == 0, (tmp_path / "one.log").read_text()
    assert finished(start_training(broken, ("playing", 3))) == -9
    assert finished(start_training(broken)) == 0, (tmp_path / "two.log").read_text()
    assert curve(tmp_path / "two") == curve(tmp_path / "one")


@pytest.mark.parametrize("point", ["playing", "optimizing"])
def test_a_signal_saves_the_last_complete_update_and_the_run_resumes_from_there(
    point: str, model: Path, unbroken: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    given = settings(model, tmp_path / "run", checkpoint_interval=0)
    process = start_training(given, (point, 2), number=signal.SIGTERM)
    assert finished(process) == EXIT_INTERRUPTED, (tmp_path / "run.log").read_text()
    [saved] = (tmp_path / "run" / "checkpoints").glob("step_*")
    assert saved.name == ("step_000001" if point == "playing" else "step_000002")
    assert finished(start_training(given)) == 0, (tmp_path / "run.log").read_text()
    assert curve(tmp_path / "run") == unbroken
