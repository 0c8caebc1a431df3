"""OpenTelemetry: traces of episodes and the servers' metrics, as a receiver gets them."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest

import rollyard
from rollyard.records.types import Json
from rollyard.services.runtime.stack import Stack
from tests.support.fixtures import unused_url
from tests.support.otlp import Received, ReceivedSpan, otlp_receiver
from tests.support.stacks import AGENT, EXAMPLES, collect, colocated, load_config, processes, read_rows
from tests.support.waiting import until

ENVIRONMENT, MODEL = "grl_sokoban_resources_server", "policy_model"
SERVERS = {AGENT, ENVIRONMENT, MODEL}
VALID_CALLS = "policy_model.responses_api_models.builtin_model.slips.mumble=0"
"""The agent sends the environment no call that is invalid, so that such a call has no span."""


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with otlp_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield receiver


@contextlib.asynccontextmanager
async def stack_of(kind: str, folder: Path) -> AsyncIterator[Stack]:
    started = (
        processes(load_config(VALID_CALLS), folder)
        if kind == "processes"
        else colocated(load_config(VALID_CALLS), folder, environ=os.environ)
    )
    async with started as stack:
        yield stack


@contextlib.asynccontextmanager
async def collected(kind: str, folder: Path) -> AsyncIterator[list[Json]]:
    """Two rollouts of a stack that still runs. The collector has its own telemetry, or that of the servers' process."""
    output = folder / "rollouts.jsonl"
    async with stack_of(kind, folder) as stack:
        if kind == "processes":
            async with rollyard.connect(stack.head_url, token=stack.keys.token) as found:
                await rollyard.collect(found, EXAMPLES, output, agent_name=AGENT, limit=2)
        else:
            await collect(stack, output, limit=2, repeats=1)
        yield read_rows(output)


def spans_of(timings: Json) -> int:
    """Two spans, of the client and of the server, for each call: /run, /seed_session, /verify, the model and tools."""
    calls: int = timings["model_calls"] + timings["tool_calls"]
    return 2 * (3 + calls)


def path_to_root(span: ReceivedSpan, spans: dict[str, ReceivedSpan]) -> list[str]:
    names = [span.service]
    while span.parent:
        span = spans[span.parent]
        names.append(span.service)
    return names


@pytest.mark.parametrize("kind", ["processes", "colocated"])
async def test_an_episode_is_one_trace_through_collector_agent_model_server_and_environment(
    kind: str, received: Received, tmp_path: Path
) -> None:
    async with collected(kind, tmp_path) as rows:
        expected = Counter({row["_ng_trace_id"]: spans_of(row["timings"]) for row in rows})
        await until(lambda: Counter(span.trace for span in received.spans) == expected, f"{expected} have arrived")
    assert len({row["_ng_trace_id"] for row in rows}) == len(rows) == 2
    for row in rows:
        spans = {span.span: span for span in received.spans if span.trace == row["_ng_trace_id"]}
        root = next(span for span in spans.values() if not span.parent)
        assert root.name == f"invoke_agent {AGENT}"
        assert root.attributes["rollyard.task_index"] == row["_ng_task_index"]
        assert root.attributes["rollyard.rollout_index"] == row["_ng_rollout_index"]
        collector = root.service
        for span in spans.values():
            way = path_to_root(span, spans)
            assert way[-1] == collector and set(way) <= {*SERVERS, collector}
            if span.service in (MODEL, ENVIRONMENT):
                assert way[1:3] == [AGENT, AGENT]
        calls = Counter(span.name for span in spans.values() if span.service == AGENT)
        timings = row["timings"]
        assert calls["chat builtin"] == timings["model_calls"]
        assert calls["execute_tool step"] == timings["tool_calls"]
        run = next(span for span in spans.values() if span.name == "POST /run")
        assert run.events["gen_ai.evaluation.result"]["gen_ai.evaluation.score.value"] == row["reward"]
        chats = [span.attributes for span in spans.values() if span.name == "chat builtin"]
        usage = row["response"]["usage"]
        for direction in ("input", "output"):
            assert sum(chat[f"gen_ai.usage.{direction}_tokens"] for chat in chats) == usage[f"{direction}_tokens"]
    assert not any(span.failed for span in received.spans)


async def test_metrics_are_those_that_prometheus_scrapes(received: Received, tmp_path: Path) -> None:
    async with stack_of("colocated", tmp_path) as stack:
        await collect(stack, tmp_path / "rollouts.jsonl", limit=2, repeats=1)
        url = (await stack.client.book.current()).servers[AGENT][0]
        page = (await stack.client.transport.send("GET", f"{url}/metrics", b"", {}, 5.0)).body.decode()
    found = {metric.name: metric for service, metric in received.metrics if service == AGENT}
    latency = next(
        point for point in found["rollyard_request_seconds"].histogram.data_points if _route(point) == "/run"
    )
    assert 'rollyard_request_seconds_count{route="/run"} 2.0' in page
    assert latency.count == sum(latency.bucket_counts) == 2
    assert len(latency.bucket_counts) == len(latency.explicit_bounds) + 1
    requests = next(point for point in found["rollyard_requests"].sum.data_points if _route(point) == "/run")
    assert found["rollyard_requests"].sum.is_monotonic and requests.as_double == 2
    assert "rollyard_sessions 0.0" in page and found["rollyard_sessions"].gauge.data_points[0].as_double == 0


def _route(point: object) -> str:
    return next((one.value.string_value for one in point.attributes if one.key == "route"), "")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["processes", "colocated"])
async def test_an_endpoint_that_does_not_respond_costs_no_rollout(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", unused_url())
    async with collected(kind, tmp_path) as rows:
        pass
    assert len(rows) == 2 and not (tmp_path / "rollouts_failures.jsonl").read_bytes()


async def test_a_sampler_chooses_some_of_the_episodes(
    received: Received, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    async with stack_of("colocated", tmp_path) as stack:
        await collect(stack, tmp_path / "rollouts.jsonl", repeats=20)
    traces = [row.get("_ng_trace_id") for row in read_rows(tmp_path / "rollouts.jsonl")]
    assert 0 < len(traces) - traces.count(None) < len(traces)
    assert {span.trace for span in received.spans} == {*traces} - {None}


async def test_a_failed_attempt_is_a_failed_span_with_the_kind_of_its_failure(
    received: Received, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(orjson.dumps({"responses_create_params": {"input": []}, "level": "no level"}))
    async with stack_of("colocated", tmp_path) as stack:
        await collect(stack, tmp_path / "rollouts.jsonl", rows=rows, repeats=1)
    failed = [span for span in received.spans if span.failed]
    assert Counter(span.name for span in failed) == {
        f"invoke_agent {AGENT}": 1,
        "POST /run": 1,
        "POST /seed_session": 2,
    }
    assert {span.attributes["error.type"] for span in failed} == {"bad_task"}
