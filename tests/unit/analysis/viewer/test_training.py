"""The viewer of a training run as a browser uses it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from rollyard.analysis.viewer.training import TrainingFolder, TrainingIndex, training_router
from rollyard.training.metrics_log import MetricsLog
from rollyard.training.run_folder import TrainingPaths
from tests.support.rollout_files import grid
from tests.support.training_runs import training_run
from tests.unit.analysis.viewer.opened_runs import get_json, viewer_client


@pytest.fixture
def paths(tmp_path: Path) -> TrainingPaths:
    """A run of 20 steps, of which the last 3 have rollouts, with evaluations after 0, 10 and 20 steps."""
    return training_run(tmp_path / "run", 20, grid([0, 1, 2], 2), kept=3)


@pytest.fixture
def index(paths: TrainingPaths) -> TrainingIndex:
    opened = TrainingIndex(paths.root)
    opened.read_through()
    return opened


@pytest.fixture
def client(index: TrainingIndex) -> httpx.AsyncClient:
    return client_of(index)


def client_of(index: TrainingIndex) -> httpx.AsyncClient:
    return viewer_client(index, training_router(index))


async def test_the_overview_names_the_steps_but_opens_no_file(client: httpx.AsyncClient) -> None:
    overview = await get_json(client, "/api/overview")
    training = overview["training"]
    assert (overview["runs"], training["name"], training["steps"], training["last_step"]) == ([], "run", 21, 20)
    assert (training["rollouts"], training["evaluations"]) == ([18, 19, 20], [0, 10, 20])
    assert training["facts"]["command"] == "ng_train train.yaml"


async def test_the_rollouts_of_a_step_are_opened_when_they_are_asked_for(client: httpx.AsyncClient) -> None:
    runs = (await get_json(client, "/api/overview?run=38&run=21&run=7"))["runs"]
    found = [(run["run"], run["name"], run["measured"]) for run in runs]
    assert found == [(21, "evaluation after step 10", 6), (38, "step 19", 6)]
    assert (await get_json(client, "/api/runs/40/rollouts"))["total"] == 6


@pytest.mark.parametrize(
    ("path", "file"),
    [("runs/6/rollouts", "rollout file of step 3"), ("compare?first=1&second=7", "evaluation file of step 3"),
     ("runs/-1/rollouts", "")],
)  # fmt: skip
async def test_a_step_without_a_file_is_not_found(client: httpx.AsyncClient, path: str, file: str) -> None:
    assert file in (await get_json(client, f"/api/{path}", 404))["detail"]


async def test_two_evaluations_are_compared_task_by_task(client: httpx.AsyncClient) -> None:
    compared = await get_json(client, "/api/compare?first=1&second=41")
    assert compared["total"] == 3 and compared["difference"]["baseline"] == "evaluation after step 0"


async def test_charts_follow_the_growing_file(
    client: httpx.AsyncClient, index: TrainingIndex, paths: TrainingPaths
) -> None:
    before = await get_json(client, "/api/training/charts")
    MetricsLog(paths.metrics).write(21, {"train/reward": 0.5})
    index.read_through()
    overview = await get_json(client, "/api/overview")
    # Charts are drawn at a limited rate, so that the first response may be one revision old.
    after = await get_json(client, "/api/training/charts")
    assert (before["first"], before["last"]) == (0, 20)
    assert overview["training"]["revision"] > before["revision"] and after["last"] in (20, 21)
    assert (after["last"] == 21) == (after["revision"] == overview["training"]["revision"])


async def test_the_table_has_a_line_for_each_step_with_metrics_or_rollouts(
    client: httpx.AsyncClient, paths: TrainingPaths
) -> None:
    paths.rollouts(21).write_bytes(b"")  # the step that is being played
    page = await get_json(client, "/api/training/steps?limit=3")
    lines = page["lines"]
    assert page["columns"][:2] == ["reward", "correct"] and page["total"] == 22
    found = [(line["step"], line["rollouts"], line["evaluation"]) for line in lines]
    assert found == [(21, 42, None), (20, 40, 41), (19, 38, None)]
    assert not any(lines[0]["cells"]) and lines[2]["cells"][1].endswith("%")


async def test_a_run_without_a_complete_line_can_be_opened(tmp_path: Path) -> None:
    paths = TrainingPaths(tmp_path)
    paths.metrics.write_bytes(b'{"step": 1, "train')
    paths.run_record.write_bytes(b'{"name": ')
    index = TrainingIndex(tmp_path)
    index.read_through()
    overview, charts, steps = [
        await get_json(client_of(index), f"/api/{path}") for path in ("overview", "training/charts", "training/steps")
    ]
    assert (overview["training"]["steps"], charts["groups"], steps["lines"]) == (0, [], [])


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts/step_000001.jsonl", "evaluations/step_000000.jsonl"])
def test_a_folder_is_recognised_by_what_a_training_run_writes(tmp_path: Path, name: str) -> None:
    assert not TrainingFolder(tmp_path).is_training_run
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    assert TrainingFolder(tmp_path).is_training_run


def test_files_beside_the_rollouts_are_no_steps(tmp_path: Path) -> None:
    paths = TrainingPaths(tmp_path)
    paths.rollouts(1).parent.mkdir()
    for path in (paths.rollouts(1), paths.rollouts(12)):
        path.write_bytes(b"")
        for ending in ("_failures.jsonl", "_status.json", "_manifest.json", "_index.npz", ".jsonl.discarded"):
            path.with_name(path.stem + ending).write_bytes(b"")
    assert TrainingFolder(tmp_path).rollouts() == {1: paths.rollouts(1), 12: paths.rollouts(12)}
