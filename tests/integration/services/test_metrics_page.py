"""GET /metrics of a real stack after a collection: Prometheus' conventions, and all that the dashboard queries."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from rollyard.records.activity import Collection
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import DatasetStatus
from rollyard.services.head.registry_client import RegistryClient
from tests.support.stacks import SOKOBAN, collect, colocated, load_config

GRAFANA = INSTALLED / "docs/grafana"
HOSTED = {"hosted": {"responses_api_models": {"openai_model": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}}}
OTHER_UNITS = re.compile(r"_(ms|milliseconds|us|minutes|hours|kb|mb|percent|s)(_|$)")
FROM_TARGETS = {"run", "name", "family", "instance", "job"}

Pages = dict[str, list[Metric]]


@pytest.fixture(scope="module")
async def pages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pages]:
    """Server name -> its metrics, as Prometheus scrapes them from the targets that the head lists."""
    folder: Path = tmp_path_factory.mktemp("stack")
    tree: dict[str, Any] = {**yaml.safe_load((INSTALLED / SOKOBAN).read_text()), **HOSTED}
    async with colocated(load_config(config=tree, tmp_path=folder), folder) as stack:
        transport = stack.client.transport
        state, progress = await collect(stack, folder / "rollouts.jsonl", limit=2)
        assert state == "complete"
        part: dict[str, Any] = {"tasks": 1, "success_stderr": None, "reward_stderr": None}
        parts = {
            "rooms": DatasetStatus(measured=4, successes=1, mean_reward=-0.5, **part),
            "essays": DatasetStatus(measured=2, successes=None, mean_reward=0.5, **part),
        }
        update = {"token_turns": 4, "failures": {"timeout": 1}, "datasets": parts}
        status = progress.status("running").model_copy(update=update)
        link = RegistryClient(transport, stack.head_url, stack.keys)
        for output in ("/x/rollouts.jsonl", "/y/rollouts.jsonl", "/y//rollouts.jsonl", "/y/ROLLOUTS.jsonl"):
            await link.report_collection(Collection(output=output, status=status, failures=[]))
        await transport.send("GET", f"{stack.head_url}/nowhere", b"", {}, 5.0)

        async def read(url: str) -> str:
            return (await transport.send("GET", url, b"", {}, 5.0)).body.decode()

        targets = orjson.loads(await read(f"{stack.head_url}/prometheus_targets"))
        found: Pages = {}
        for target in targets:
            url = f"http://{target['targets'][0]}"
            await read(f"{url}/health")
            found[target["labels"]["name"]] = list(text_string_to_metric_families(await read(f"{url}/metrics")))
        yield found


def rollyard_metrics(pages: Pages) -> list[Metric]:
    return [metric for page in pages.values() for metric in page if metric.name.startswith("rollyard_")]


def samples(pages: Pages) -> dict[str, set[str]]:
    """Name of each series -> its labels."""
    found: dict[str, set[str]] = {}
    for page in pages.values():
        for metric in page:
            found.setdefault(metric.name, set())
            for sample in metric.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def test_every_server_of_the_run_and_the_head_is_a_target(pages: Pages) -> None:
    assert set(pages) == {"head", "policy_model", "hosted", "grl_sokoban_resources_server", "grl_sokoban_game_agent"}


async def test_names_and_help_follow_prometheus_conventions(pages: Pages) -> None:
    for metric in rollyard_metrics(pages):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name) and not OTHER_UNITS.search(metric.name), metric.name
        assert metric.documentation and not metric.documentation.endswith("."), metric.name
        assert metric.type in ("counter", "gauge", "histogram"), metric.name
        if metric.type == "counter":
            assert all(sample.name.endswith(("_total", "_created")) for sample in metric.samples), metric.name
        else:
            assert not metric.name.endswith("_total"), metric.name
        if metric.type == "histogram":
            assert metric.name.endswith("_seconds"), metric.name


async def test_every_series_occurs_once_even_if_two_collections_have_files_of_the_same_name(pages: Pages) -> None:
    for page in pages.values():
        series = [(s.name, *sorted(s.labels.items())) for metric in page for s in metric.samples]
        assert sorted(series) == sorted(set(series))
    files = [s.labels for m in pages["head"] for s in m.samples if s.name == "rollyard_collection_oldest_seconds"]
    assert {(one["folder"], one["file"]) for one in files} >= {("/x", "rollouts.jsonl"), ("/y", "rollouts.jsonl")}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rollouts", {"rooms": 4.0, "essays": 2.0}),
        ("reward_mean", {"rooms": -0.5, "essays": 0.5}),
        ("success_ratio", {"rooms": 0.25}),
    ],
)
async def test_each_dataset_of_a_mixture_has_its_own_metrics(
    pages: Pages, name: str, expected: dict[str, float]
) -> None:
    (metric,) = [one for one in pages["head"] if one.name == f"rollyard_collection_dataset_{name}"]
    assert {one.labels["dataset"]: one.value for one in metric.samples if one.labels["folder"] == "/x"} == expected


async def test_no_label_collides_with_the_labels_of_the_target(pages: Pages) -> None:
    for metric in rollyard_metrics(pages):
        assert not {label for sample in metric.samples for label in sample.labels} & FROM_TARGETS, metric.name


@pytest.mark.parametrize(
    "name",
    [
        *("rollyard_requests_total", "rollyard_request_seconds_bucket", "rollyard_in_flight", "rollyard_sessions"),
        *("rollyard_event_loop_lag_seconds_bucket", "rollyard_event_loop_lag_worst_seconds"),
        *("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"),
    ],
)
async def test_every_server_exports(pages: Pages, name: str) -> None:
    for server in pages:
        assert name in samples({server: pages[server]}), server


async def test_routes_of_fastapi_are_counted_by_template_and_unknown_paths_as_other(pages: Pages) -> None:
    counted = {
        (sample.labels["route"], sample.labels["status"])
        for metric in pages["head"]
        for sample in metric.samples
        if sample.name == "rollyard_requests_total"
    }
    assert {("/prometheus_targets", "200"), ("other", "404")} <= counted


def queries() -> list[str]:
    board = orjson.loads((GRAFANA / "rollyard.json").read_bytes())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return expressions + [one["definition"] for one in board["templating"]["list"] if one["type"] == "query"]


async def test_every_metric_and_label_that_the_dashboard_queries_exists(pages: Pages) -> None:
    exported = samples(pages)
    for query in queries():
        names = set(re.findall(r"\b(?:rollyard|process)_\w+", query))
        assert names and names <= exported.keys(), f"{query}: {names - exported.keys()} are missing"
        labels = set(re.findall(r"(\w+)=~?\"", query))
        labels |= {one.strip() for group in re.findall(r"by \(([^)]*)\)", query) for one in group.split(",")}
        known = set().union(*(exported[name] for name in names)) | FROM_TARGETS | {"le"}
        assert labels <= known, f"{query}: {labels - known} are unknown labels"
