"""A real MLflow with a local store."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import orjson

from tests.external.track.files import COUNT, collection, grow, log_training, ng_track

ENV = {"MLFLOW_DISABLE_TELEMETRY": "true"}


def file_store(folder: Path) -> dict[str, str]:
    return {**ENV, "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": (folder / "store").as_uri()}


def test_metrics_parameters_and_a_table_of_rollouts_are_stored_in_mlflow(tmp_path: Path) -> None:
    collection(tmp_path)
    done = ng_track("+project=puzzles", to="mlflow", cwd=tmp_path, env=file_store(tmp_path))
    assert done.status == 0, done.err
    assert f"{COUNT} rollouts tracked" in done.out
    (folder,) = [path.parent for path in tmp_path.glob("store/*/*/meta.yaml")]
    metrics = folder / "metrics"
    curve = [line.split() for line in (metrics / "reward/mean").read_text().splitlines()]
    assert [(int(step), float(value)) for _, value, step in curve] == [(50, 5.0), (100, 5.0), (120, 5.0)]
    assert float((metrics / "failed_attempts/timeout").read_text().split()[1]) == 2.0
    assert float((metrics / "success/rate").read_text().split()[1]) == 0.5
    assert (folder / "params/settings.environment.level").read_text() == "3"
    table = orjson.loads((folder / "artifacts/rollouts.json").read_bytes())
    assert len(table["data"]) == 50
    assert "call: step" in table["data"][0][table["columns"].index("conversation")]
    assert "status: 3" in (folder / "meta.yaml").read_text()  # FINISHED


def query_store(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Query MLflow's default store, a file in the folder in which the command ran."""
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
        return store.execute(query).fetchall()


def test_the_documented_command_works_without_settings_and_continues_its_run(
    tmp_path: Path,
) -> None:
    output = collection(tmp_path)
    for new in (COUNT, 0, 90):
        if new == 90:
            grow(output, COUNT + new)
        done = ng_track("+project=sokoban", "+name=qwen3-4b", to="mlflow", cwd=tmp_path, env=ENV)
        assert done.status == 0, done.err
        assert f"{new} of them new" in done.out
    steps = query_store(tmp_path, "SELECT step FROM metrics WHERE key = 'reward/mean' ORDER BY step")
    assert steps == [(50,), (100,), (120,), (150,), (200,), (210,)]
    assert query_store(tmp_path, "SELECT name, status FROM runs") == [("qwen3-4b", "FINISHED")]


def test_other_rollouts_or_another_name_start_another_run(tmp_path: Path) -> None:
    for folder, name in (("a", "one"), ("b", "one"), ("b", "two")):
        (tmp_path / folder).mkdir(exist_ok=True)
        collection(tmp_path / folder, created=float(ord(folder)))
        rows = f"{folder}/rollouts.jsonl"
        done = ng_track("+project=p", f"+name={name}", to="mlflow", cwd=tmp_path, env=ENV, rows=rows)
        assert done.status == 0, done.err
    assert query_store(tmp_path, "SELECT name FROM runs ORDER BY start_time") == [("one",), ("one",), ("two",)]


def test_a_training_run_is_logged_by_step_with_the_parts_of_its_reward(tmp_path: Path) -> None:
    done = log_training("mlflow", cwd=tmp_path, env=file_store(tmp_path))
    assert done.status == 0 and "failed" not in done.err, done.err
    (folder,) = [path.parent for path in tmp_path.glob("store/*/*/meta.yaml")]
    curve = [line.split() for line in (folder / "metrics/train/reward").read_text().splitlines()]
    assert [int(step) for _, _, step in curve] == [1, 2, 3, 2, 3, 4]
    assert (folder / "metrics/train/reward.format").exists() and (folder / "metrics/eval/correct_rate").exists()
    assert (folder / "params/loss.algorithm").read_text() == "grpo"
