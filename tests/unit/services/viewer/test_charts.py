"""The charts that the page is given: whole, in its own style, and each mark leads to what it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from rollyard.services.head.run_snapshot import RunSnapshot
from rollyard.services.viewer.api.run_history import MAX_MOMENTS, RunHistory
from rollyard.services.viewer.export.export import export
from tests.external.browser.recordings import with_tokens
from tests.support.rollout_files import failures, row, varied, write
from tests.unit.services.viewer.opened_runs import browser, no_boards, opened


async def got(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return orjson.loads(answer.content)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Rewards on the edges of a histogram's bars, sums that rounding left beside them, several agents, failures."""
    rows = [
        row(
            *(task, repeat, 0.1 * (task + repeat) + (0.3 - 0.1 - 0.2)),
            agent_ref={"name": f"agent & co {repeat % 2}"},
            finish_reason=["answered", "<b>&x=1"][task % 2],
        )
        for task in range(80)
        for repeat in range(2)
    ]
    path = write(tmp_path / "many.jsonl", rows)
    failures(path, [(900, 0, "time out"), (901, 0, "time out")])
    return path


async def test_a_mark_leads_to_as_many_rollouts_as_it_says(many: Path) -> None:
    async with browser(opened(many)) as client:
        charts = (await got(client, "/api/runs/0/profile"))["charts"]
        followed = set()
        for chart in charts:
            for line in chart["numbers"]["rows"]:
                if line["href"] is not None:
                    followed.add(chart["name"])
                    query = line["href"].removeprefix("#/runs/0?")
                    count = line["cells"][2 if chart["name"] == "failures" else 1]
                    assert (await got(client, f"/api/runs/0/rollouts?{query}"))["total"] == int(count), line
    assert followed == {"rewards", "by_calls", "ends", "agents", "failures"}


async def test_links_of_marks_stay_within_the_page(many: Path) -> None:
    async with browser(opened(many)) as client:
        charts = (await got(client, "/api/runs/0/profile"))["charts"]
    links = [link for chart in charts for link in re.findall(r'href="([^"]*)"', chart["svg"])]
    assert links and all(link.startswith("#/runs/0?") for link in links)


async def test_a_rollout_with_tokens_has_a_chart_of_them_and_the_cards_of_a_task_have_none(tmp_path: Path) -> None:
    plain = row(0, 0, 1.0)
    plain["response"]["output"] = [{"type": "function_call", "name": "step", "arguments": "{}", "call_id": "1"}]
    async with browser(opened(write(tmp_path / "x.jsonl", [with_tokens(plain)]))) as client:
        story = await got(client, "/api/runs/0/rollouts/0/0")
        cards = await got(client, "/api/runs/0/tasks/0")
    assert [chart["name"] for chart in story["charts"]] == ["log_probs"]
    assert "token 4: log-probability −6, 0.2%" in story["charts"][0]["svg"]
    assert cards["stories"][0]["charts"] == []


async def test_two_runs_are_drawn_beside_each_other_and_against_each_other(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{seed}.jsonl", varied(6, 4, seed=seed)) for seed in (0, 1)]
    async with browser(opened(*files)) as client:
        names = [chart["name"] for chart in (await got(client, "/api/compare"))["charts"]]
    assert names == ["success_rates", "mean_rewards", "solve_rate_difference", "reward_difference"]


async def test_the_style_of_charts_is_one_of_the_pages_own_files(many: Path) -> None:
    async with browser(opened(many)) as client:
        answer = await client.get("/static/css/charts.css")
    assert answer.headers["content-type"].startswith("text/css") and ".chart" in answer.text


def test_an_exported_page_holds_the_charts_and_their_style(many: Path) -> None:
    page = export(opened(many), no_boards).decode()
    assert ".chart .bar" in page and "\\u003csvg class=" in page


def test_the_pace_of_a_run_is_drawn_from_two_moments_on_and_another_run_begins_a_new_history() -> None:
    history, counts = RunHistory(), []
    for at, run in enumerate(["a", "a", "", "a", "b"]):
        history.add(RunSnapshot(time=float(at), run_id=run, total=at))
        counts.append([chart.name for chart in history.charts()])
    both = ["rate", "in_progress"]
    assert counts == [[], both, both, both, []]


def test_the_history_of_a_run_stays_bounded() -> None:
    history = RunHistory()
    for at in range(2 * MAX_MOMENTS):
        history.add(RunSnapshot(time=float(at), run_id="a", total=at))
    rate, in_progress = history.charts()
    assert "over the last 10 min" in rate.caption
    assert in_progress.svg.count("<title>") <= 240
