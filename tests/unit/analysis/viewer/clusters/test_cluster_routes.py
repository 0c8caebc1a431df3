"""The viewer serves clusters, and lists the rollouts of one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollyard.analysis.viewer.app import viewer_app
from rollyard.analysis.viewer.clusters.cluster_index import ClusterIndex
from rollyard.analysis.viewer.clusters.cluster_routes import cluster_router
from tests.support.failing_rows import recorded
from tests.support.rollout_files import write
from tests.support.waiting import deadline_s
from tests.unit.analysis.viewer.opened_runs import get_json, no_replay, open_index


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    first = write(tmp_path / "first.jsonl", recorded(["loop", "give-up"], tasks=20, repeats=4))
    second = write(tmp_path / "second.jsonl", recorded(["give-up"], tasks=20, repeats=4, seed=1))
    file_index = open_index(first, second)
    clusters = ClusterIndex(file_index.find)
    file_index.clusters = clusters.select
    app = viewer_app(file_index, no_replay, (cluster_router(clusters),))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as opened:
        yield opened
    clusters.close()


async def finished(client: httpx.AsyncClient, path: str) -> Any:
    """The response once the clusters are complete. Each request waits for a moment on the server."""
    async with asyncio.timeout(deadline_s()):
        while True:
            found = await get_json(client, path)
            if found["done"] == 1:
                return found


async def test_a_cluster_is_a_filter_of_the_list(client: httpx.AsyncClient) -> None:
    found = await finished(client, "/api/runs/0/clusters")
    assert len(found["clusters"]["clusters"]) == 2
    for cluster in found["clusters"]["clusters"]:
        page = await get_json(client, f"/api/runs/0/rollouts?cluster={cluster['key']}")
        assert page["total"] == cluster["count"]
        typical = {(one["task"], one["repeat"]) for one in cluster["typical"]}
        assert typical <= {(line["task"], line["repeat"]) for line in page["lines"]}


async def test_the_filter_can_be_combined_with_others(client: httpx.AsyncClient) -> None:
    found = await finished(client, "/api/runs/0/clusters")
    loops = next(one for one in found["clusters"]["clusters"] if "loop" in one["name"])
    page = await get_json(client, f"/api/runs/0/rollouts?cluster={loops['key']}&where=task < 5")
    assert 0 < page["total"] < loops["count"]
    assert all(line["task"] < 5 for line in page["lines"])
    assert (await get_json(client, f"/api/runs/0/rollouts?cluster={loops['key']}&end=answered"))["total"] == 0


async def test_a_cluster_of_two_runs_lists_its_rollouts_in_each(client: httpx.AsyncClient) -> None:
    found = await finished(client, "/api/clusters/0/1")
    for change in found["changes"]["changes"]:
        for run in (0, 1):
            query = f"cluster={change['cluster']['key']}&clusters_of=0-1"
            assert (await get_json(client, f"/api/runs/{run}/rollouts?{query}"))["total"] == change["counts"][run]


async def test_an_expression_selects_the_failed_rollouts(client: httpx.AsyncClient) -> None:
    found = await finished(client, '/api/runs/0/clusters?where=end == "max_steps"')
    (cluster,) = found["clusters"]["clusters"]
    assert cluster["count"] == found["clusters"]["failed"]
    query = f'cluster={cluster["key"]}&clusters_where=end == "max_steps"'
    assert (await get_json(client, f"/api/runs/0/rollouts?{query}"))["total"] == cluster["count"]


async def test_an_unknown_cluster_has_no_rollouts(client: httpx.AsyncClient) -> None:
    await finished(client, "/api/runs/0/clusters")
    assert (await get_json(client, "/api/runs/0/rollouts?cluster=none"))["total"] == 0


async def test_an_invalid_expression_is_refused_with_its_error(client: httpx.AsyncClient) -> None:
    problem = await get_json(client, "/api/runs/0/clusters?where=reward <", 422)
    assert problem["title"] == "invalid expression"


async def test_an_unknown_run_is_not_found(client: httpx.AsyncClient) -> None:
    await get_json(client, "/api/runs/7/clusters", 404)


async def test_without_scikit_learn_the_page_says_what_to_install(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    found = await finished(client, "/api/runs/0/clusters")
    assert "rollyard[clusters]" in found["error"]
    assert found["clusters"] is None
