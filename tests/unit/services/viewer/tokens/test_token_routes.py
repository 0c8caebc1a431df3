"""The tokens of a run, as the page requests them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from rollyard.services.types import Json
from rollyard.services.viewer.app import viewer_app
from rollyard.services.viewer.library import FileIndex
from rollyard.services.viewer.tokens.change_routes import change_router
from rollyard.services.viewer.tokens.token_index import TokenIndex
from rollyard.services.viewer.tokens.token_routes import token_router
from tests.support.rollout_files import write
from tests.support.token_rows import call_item, random_token_rows, token_row
from tests.unit.services.viewer.opened_runs import no_replay, open_index


async def read(index: FileIndex, path: str, *, tokens: TokenIndex | None = None, status: int = 200) -> Any:
    """The response once everything has been counted."""
    counter = tokens or TokenIndex(index.find)
    app = viewer_app(index, no_replay, (token_router(index, counter), change_router(index, counter)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://viewer") as client:
        while True:
            response = await client.get(path)
            assert response.status_code == status, response.text
            body = orjson.loads(response.content)
            if status != 200 or body["examined"] == 1:
                return body


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> FileIndex:
    rows = [
        token_row(3, 0, [call_item([" sure", " odd"], [-0.1, -7.0]), call_item([" sure"], [-0.2])]),
        token_row(3, 1, [call_item([" sure", " sure"], [-0.3, -0.4])]),
        {**token_row(4, 0, []), "reward": 0.0},
    ]
    return open_index(write(tmp_path_factory.mktemp("tokens") / "rollouts.jsonl", rows))


async def test_tokens_are_grouped_by_text_with_the_largest_part_of_the_surprisal_first(index: FileIndex) -> None:
    view = await read(index, "/api/runs/0/tokens")
    assert [(one["text"], one["count"], one["rollouts"], one["rare"]) for one in view["groups"]] == [
        (" odd", 1, 1, 1),
        (" sure", 4, 2, 0),
    ]
    assert view["groups"][0]["surprisal"] == pytest.approx(7 / 8)
    assert (view["rows"], view["with_tokens"], view["calls"], view["tokens"]) == (3, 2, 3, 5)
    assert view["log_prob"]["mean"] == pytest.approx(-8 / 5)


async def test_examples_lead_to_the_token_in_its_rollout(index: FileIndex) -> None:
    view = await read(index, "/api/runs/0/tokens")
    sure = view["groups"][1]
    assert [(one["task"], one["repeat"], one["call"], one["position"]) for one in sure["examples"]] == [
        (3, 1, 0, 1),
        (3, 0, 1, 0),
    ]


async def test_tokens_can_be_ordered_filtered_and_paged(index: FileIndex) -> None:
    view = await read(index, "/api/runs/0/tokens?sort=count&limit=1")
    assert [one["text"] for one in view["groups"]] == [" sure"] and view["total"] == 2
    view = await read(index, "/api/runs/0/tokens?q=ODD")
    assert [one["text"] for one in view["groups"]] == [" odd"]
    view = await read(index, "/api/runs/0/tokens?least=2")
    assert [one["text"] for one in view["groups"]] == [" sure"]


async def test_an_unknown_order_is_refused(index: FileIndex) -> None:
    problem = await read(index, "/api/runs/0/tokens?sort=colour", status=422)
    assert "sort" in problem["detail"]


async def test_charts_have_a_point_for_each_turn(index: FileIndex) -> None:
    charts = {chart["name"]: chart for chart in (await read(index, "/api/runs/0/tokens"))["charts"]}
    assert [row["cells"][:2] for row in charts["by_turn"]["numbers"]["rows"]] == [["1", "4"], ["2", "1"]]
    assert "log_prob_histogram" in charts


async def test_a_file_without_tokens_says_so(tmp_path: Path) -> None:
    index = open_index(write(tmp_path / "rollouts.jsonl", [token_row(0, 0, [])]))
    view = await read(index, "/api/runs/0/tokens")
    assert (view["tokens"], view["rows"], view["charts"], view["groups"]) == (0, 1, [], [])


async def test_a_large_file_is_sampled_and_the_view_says_so(tmp_path: Path) -> None:
    rows = random_token_rows(40, 4)
    path = write(tmp_path / "rollouts.jsonl", rows)
    index = open_index(path)
    small = TokenIndex(index.find, most=path.stat().st_size // 4)
    view = await read(index, "/api/runs/0/tokens", tokens=small)
    assert view["sampled"] and 0 < view["rows"] < len(rows)


async def test_rows_that_are_appended_are_counted_later(tmp_path: Path) -> None:
    rows: list[Json] = random_token_rows(3, 2)
    path = write(tmp_path / "rollouts.jsonl", rows[:3])
    index = open_index(path)
    tokens = TokenIndex(index.find, pause_s=0.0)
    assert (await read(index, "/api/runs/0/tokens", tokens=tokens))["rows"] == 3
    write(path, rows)
    index.read_through()
    while (await read(index, "/api/runs/0/tokens", tokens=tokens))["rows"] != len(rows):
        pass


async def test_the_tokens_of_two_runs_are_compared(tmp_path: Path) -> None:
    first = write(tmp_path / "first.jsonl", random_token_rows(8, 3))
    second = write(tmp_path / "second.jsonl", random_token_rows(8, 3, seed=1, drift=0.3))
    view = await read(open_index(first, second), "/api/tokens/changes?first=0&second=1")
    before, after = view["more"][0]["groups"]
    assert before["text"] == after["text"] == " because" and after["share"] > before["share"]
    assert view["fewer"][0]["log_odds"] < 0 < view["more"][0]["log_odds"]


async def test_texts_are_not_compared_with_ids(tmp_path: Path) -> None:
    first = write(tmp_path / "first.jsonl", random_token_rows(3, 2))
    second = write(tmp_path / "second.jsonl", random_token_rows(3, 2, with_texts=False))
    view = await read(open_index(first, second), "/api/tokens/changes?first=0&second=1")
    assert "ids" in view["why_not"] and view["more"] == []
