"""The charts of the page: complete, styled by the page, with marks that link to the rollouts they show."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from rollyard.analysis.viewer.export import export
from rollyard.analysis.viewer.live import MAX_MOMENTS, RunHistory
from rollyard.records.types import Json
from rollyard.services.head.registry_client import RunSnapshot
from tests.external.browser.recordings import with_tokens
from tests.support.rollout_files import random_rows, row, write, write_failures
from tests.unit.analysis.viewer.opened_runs import get_json, no_replay, open_index, viewer_client


@pytest.fixture
def varied_run(tmp_path: Path) -> Path:
    """Rewards on and next to the edges of histogram bars (sums with rounding errors), several agents, failures."""
    rounding, rows = 0.3 - 0.1 - 0.2, []
    for task, repeat in itertools.product(range(80), range(2)):
        more: Json = {
            "agent_ref": {"name": f"agent & co {repeat % 2}"},
            "finish_reason": ["answered", "<b>&x=1"][task % 2],
        }
        rows.append(row(task, repeat, 0.1 * (task + repeat) + rounding, **more))
    path = write(tmp_path / "many.jsonl", rows)
    write_failures(path, [(900, 0, "time out"), (901, 0, "time out")])
    return path


async def test_a_mark_links_to_as_many_rollouts_as_it_counts(varied_run: Path) -> None:
    client = viewer_client(open_index(varied_run))
    charts = (await get_json(client, "/api/runs/0/profile"))["charts"]
    lines = [(chart["name"], line) for chart in charts for line in chart["numbers"]["rows"] if line["href"]]
    for name, line in lines:
        query, count = line["href"].removeprefix("#/runs/0?"), line["cells"][2 if name == "failures" else 1]
        assert (await get_json(client, f"/api/runs/0/rollouts?{query}"))["total"] == int(count), line
    assert {name for name, _ in lines} == {"rewards", "by_calls", "ends", "agents", "failures"}
    assert {link[:9] for chart in charts for link in re.findall(r'href="([^"]*)"', chart["svg"])} == {"#/runs/0?"}


async def test_a_rollout_with_tokens_has_a_chart_of_their_log_probabilities(tmp_path: Path) -> None:
    plain = row(0, 0, 1.0)
    plain["response"]["output"] = [{"type": "function_call", "name": "step", "arguments": "{}", "call_id": "1"}]
    client = viewer_client(open_index(write(tmp_path / "x.jsonl", [with_tokens(plain)])))
    rollout = await get_json(client, "/api/runs/0/rollouts/0/0")
    assert [chart["name"] for chart in rollout["charts"]] == ["log_probs"]
    assert "token 4: log-probability −6, 0.2%" in rollout["charts"][0]["svg"]


async def test_the_comparison_has_charts_of_both_runs_and_of_their_difference(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{seed}.jsonl", random_rows(6, 4, seed=seed)) for seed in (0, 1)]
    names = [chart["name"] for chart in (await get_json(viewer_client(open_index(*files)), "/api/compare"))["charts"]]
    assert names == ["success_rates", "mean_rewards", "solve_rate_difference", "reward_difference"]


async def test_the_style_of_charts_is_a_static_file_of_the_page_and_part_of_an_export(varied_run: Path) -> None:
    index = open_index(varied_run)
    response = await viewer_client(index).get("/static/css/charts.css")
    page = export(index, no_replay).decode()
    assert response.headers["content-type"].startswith("text/css") and ".chart .bar" in response.text
    assert ".chart .bar" in page and "\\u003csvg class=" in page


def test_the_pace_is_drawn_from_two_snapshots_on_and_a_new_run_resets_the_history() -> None:
    history, counts = RunHistory(), []
    for time, run in enumerate(["a", "a", "", "a", "b"]):
        history.add(RunSnapshot(time=float(time), run_id=run, total=time))
        counts.append([chart.name for chart in history.charts()])
    both = ["rate", "in_progress"]
    assert counts == [[], both, both, both, []]


def test_the_history_of_a_run_stays_bounded() -> None:
    history = RunHistory()
    for time in range(2 * MAX_MOMENTS):
        history.add(RunSnapshot(time=float(time), run_id="a", total=time))
    rate, in_progress = history.charts()
    assert "10 min" in rate.caption
    assert in_progress.svg.count("<title>") <= 240
