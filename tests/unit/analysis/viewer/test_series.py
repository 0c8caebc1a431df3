"""The routes of a series of steps as a browser uses them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.series import (
    SeriesProgress,
    SeriesSource,
    StepReader,
    files_as_series,
    series_router,
    training_series,
)
from rollyard.analysis.viewer.training import TrainingIndex
from rollyard.records.types import Json
from tests.support.reading_pools import read_in_threads
from tests.support.rollout_files import write
from tests.support.step_rows import step_rows
from tests.support.training_runs import training_run
from tests.unit.analysis.viewer.opened_runs import get_json, viewer_client

STEPS = {0: {1: 0, 2: 4, 3: 1}, 25: {3: 2, 2: 2, 1: 2}, 50: {1: 4, 2: 0, 3: 3}}


@pytest.fixture
def reader() -> Iterator[StepReader]:
    made = StepReader()
    yield made
    made.close()


def client_of(index: FileIndex, source: SeriesSource, reader: StepReader) -> httpx.AsyncClient:
    return viewer_client(index, series_router(index, source, reader))


@pytest.fixture
def client(tmp_path: Path, reader: StepReader) -> httpx.AsyncClient:
    """A series of three evaluations, whose tasks are in different orders."""
    files = [(f"step_{step}", write(tmp_path / f"step_{step}.jsonl", step_rows(rows))) for step, rows in STEPS.items()]
    index = FileIndex(files, series=True)
    index.read_through()
    return client_of(index, files_as_series(files, list(STEPS)), reader)


async def read_series(client: httpx.AsyncClient, reader: StepReader, query: str = "") -> Any:
    await get_json(client, f"/api/series{query}")  # the first request starts reading
    reader.wait()
    return await get_json(client, f"/api/series{query}")


async def test_curves_have_the_numbers_of_the_report_for_each_step(
    client: httpx.AsyncClient, reader: StepReader
) -> None:
    series = await read_series(client, reader)
    [chart] = [one for group in series["groups"] for one in group["charts"] if one["name"] == "solve_rate"]
    points = chart["numbers"]["rows"]
    assert [row["cells"][:2] for row in points] == [["0", "41.7%"], ["25", "50.0%"], ["50", "58.3%"]]
    assert [row["href"] for row in points] == ["#/runs/0", "#/runs/1", "#/runs/2"]
    rate = (await get_json(client, "/api/runs/1/profile"))["profile"]["solved"]["rate"]
    assert points[1]["cells"] == ["25", *(f"{rate[name]:.1%}" for name in ("mean", "low", "high"))]
    assert series["read"] == series["total"] and [step["rollouts"] for step in series["steps"]] == [12, 12, 12]


async def test_cells_lead_to_the_task_at_its_index_in_the_steps_file(
    client: httpx.AsyncClient, reader: StepReader
) -> None:
    await read_series(client, reader)
    tasks = await get_json(client, "/api/series/tasks?sort=-change&limit=1")
    [row] = tasks["rows"]
    assert (tasks["by"], tasks["total"], row["change"]) == ("content", 3, 1.0)
    assert [(cell["task"], cell["value"]) for cell in row["cells"]] == [(0, 0.0), (2, 0.5), (0, 1.0)]


async def test_the_range_of_steps_limits_the_columns(client: httpx.AsyncClient, reader: StepReader) -> None:
    await read_series(client, reader)
    tasks = await get_json(client, "/api/series/tasks?first=25&last=40")
    assert [column["step"] for column in tasks["columns"]] == [25]


@pytest.mark.parametrize(("path", "status"), [("?of=nothing", 404), ("/tasks?sort=x", 422)])
async def test_what_does_not_exist_is_refused(client: httpx.AsyncClient, path: str, status: int) -> None:
    await get_json(client, f"/api/series{path}", status)


async def test_a_training_run_has_its_evaluations_and_its_rollouts_as_series(
    tmp_path: Path, reader: StepReader
) -> None:
    index = TrainingIndex(training_run(tmp_path / "run", 20, step_rows({1: 2, 2: 3}), kept=3).root)
    index.read_through()
    client = client_of(index, training_series(index.folder), reader)
    evaluations = await read_series(client, reader)
    rollouts = await read_series(client, reader, "?of=rollouts")
    assert (evaluations["of"], [step["run"] for step in evaluations["steps"]]) == ("evaluations", [1, 21, 41])
    assert [step["step"] for step in rollouts["steps"]] == [18, 19, 20]


async def test_a_file_that_cannot_be_read_is_named_and_the_others_are_shown(
    tmp_path: Path, client: httpx.AsyncClient, reader: StepReader
) -> None:
    (tmp_path / "step_25.jsonl").unlink()
    series = await read_series(client, reader)
    assert any("step_25 cannot be read" in note for note in series["notes"])
    assert [step["rollouts"] for step in series["steps"]] == [12, None, 12]


def read(reader: StepReader, folder: Path, rows: list[Json], tail: bytes = b"", times: int = 1) -> SeriesProgress:
    """What is known of a file of these rows, after it was read through, or asked about several times."""
    path = write(folder / "step_1.jsonl", rows, tail=tail)
    [files] = files_as_series([("step_1", path)], [1])().values()
    for _ in range(times):
        reader.progress(files)
        reader.wait()
    return reader.progress(files)


def test_a_file_is_read_again_only_after_it_has_changed(tmp_path: Path, reader: StepReader) -> None:
    assert read(reader, tmp_path, step_rows({1: 1}), times=3).revision == 1


def test_duplicate_rows_and_invalid_lines_do_not_count(tmp_path: Path, reader: StepReader) -> None:
    rows = step_rows({1: 1})
    assert read(reader, tmp_path, [*rows, rows[0]], tail=b'no json\n{"torn').summaries[1].rollouts == 4


def test_processes_that_read_parts_of_a_file_give_the_same_figures(
    tmp_path: Path, reader: StepReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_threads(monkeypatch)
    rows = step_rows(dict.fromkeys(range(40), 2), reward_components={"format": 0.5})
    parallel = StepReader(workers=2, worth_processes=0, part=4000)
    expected, found = (read(one, tmp_path, rows).summaries[1] for one in (reader, parallel))
    parallel.close()
    assert found.rollouts == expected.rollouts == 160 and found.figures == expected.figures
