"""Engine and trainer of a training run, as the page requests them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.analysis.viewer.token_pairs import pair_router
from rollyard.analysis.viewer.training import TrainingIndex
from rollyard.records.types import Json
from rollyard.training.run_folder import TrainingPaths
from tests.support.token_rows import call_item, token_id, token_row
from tests.support.training_runs import training_run
from tests.unit.analysis.viewer.opened_runs import get_json, viewer_client

TEXTS = [" go", " up", " now"]


def pair(position: int, **more: object) -> Json:
    token = {"id": token_id(TEXTS[position]), "engine": -1.0 - position, "trainer": -1.5 - position}
    return {"task": 0, "repeat": 1, "index": 2 + position, **token, "entropy": 0.5, "clipped": False, **more}


RECORD = {
    "tokens": 6,
    "clipped": 1,
    "log_ratio_edges": [-0.1, 0.1],
    "log_ratio_counts": [1, 5, 0],
    "sample": [pair(0), pair(1), pair(1, trainer=None, index=7), pair(1, engine=None, index=8)],
    "largest": [
        *(pair(2, trainer=-9.0, clipped=True), {"task": "no"}, pair(0, task=77), pair(1, trainer=None, index=7))
    ],
}


@pytest.fixture
def paths(tmp_path: Path) -> TrainingPaths:
    """A run of three steps, of which the last two have pairs."""
    rows = [token_row(0, repeat, [call_item(TEXTS, [-1.0, -2.0, -3.0])]) for repeat in range(2)]
    paths = training_run(tmp_path / "run", 3, rows)
    paths.token_pairs(1).parent.mkdir()
    for step in (2, 3):
        paths.token_pairs(step).write_bytes(orjson.dumps({"step": step, **RECORD}))
    return paths


async def mismatch(paths: TrainingPaths, query: str = "", status: int = 200) -> Any:
    index = TrainingIndex(paths.root)
    index.read_through()
    return await get_json(viewer_client(index, pair_router(index)), f"/api/training/mismatch{query}", status)


async def test_the_last_step_is_shown_unless_another_is_asked_for(paths: TrainingPaths) -> None:
    assert (await mismatch(paths))["step"] == 3
    view = await mismatch(paths, "?step=2")
    assert (view["step"], view["steps"], view["tokens"], view["clipped"]) == (2, [2, 3], 6, 1)
    await mismatch(paths, "?step=1", status=404)


async def test_large_differences_lead_to_the_token_in_its_context(paths: TrainingPaths) -> None:
    first, unknown = (await mismatch(paths))["largest"]
    assert (first["run"], first["task"], first["repeat"], first["call"], first["position"]) == (6, 0, 1, 0, 2)
    assert (first["before"], first["text"], first["clipped"]) == (" go up", " now", True)
    assert unknown["call"] is None and unknown["task"] == 77


async def test_the_histogram_has_all_tokens_and_those_without_a_finite_log_probability_are_counted(
    paths: TrainingPaths,
) -> None:
    view = await mismatch(paths)
    charts = {chart["name"]: chart for chart in view["charts"]}
    assert set(charts) == {"engine_trainer", "difference", "log_ratios"}
    assert [row["cells"][1] for row in charts["log_ratios"]["numbers"]["rows"]] == ["1", "5", "0"]
    assert view["not_finite"] == 2 and "2 tokens without" in charts["engine_trainer"]["caption"]


async def test_a_run_without_pairs_says_so(tmp_path: Path) -> None:
    view = await mismatch(training_run(tmp_path / "run", 1))
    assert (view["step"], view["charts"], view["largest"]) == (None, [], [])


@pytest.mark.parametrize("content", [b'{"step": 3, "sam', b'{"tokens": NaN}', b"[]"])
async def test_a_file_that_cannot_be_read_is_named_beside_the_other_steps(paths: TrainingPaths, content: bytes) -> None:
    paths.token_pairs(3).write_bytes(content)
    view, other = await mismatch(paths), await mismatch(paths, "?step=2")
    assert (view["step"], view["steps"], view["charts"], view["largest"]) == (3, [2, 3], [], [])
    assert view["problem"].startswith("token_pairs/step_000003.json") and "JSON" in view["problem"]
    assert (other["problem"], other["tokens"]) == ("", 6)
