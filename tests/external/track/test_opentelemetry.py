"""A collector of OpenTelemetry, Rotel, takes what a run's processes send, and sends it on to another receiver."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import rotel

import rollyard
from tests.support.fixtures import unused_url
from tests.support.otlp import otlp_receiver
from tests.support.stacks import AGENT, EXAMPLES, load_config, processes, read_rows
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.smoke


@contextmanager
def otel_collector(exporter_url: str, log_file: Path) -> Iterator[str]:
    """Start the collector, and return the URL for OTEL_EXPORTER_OTLP_ENDPOINT."""
    url = unused_url()
    address = urlsplit(url)
    options = {
        "otlp-http-endpoint": address.netloc,
        "otlp-grpc-endpoint": urlsplit(unused_url()).netloc,
        "exporter": "otlp",
        "otlp-exporter-endpoint": exporter_url,
        "otlp-exporter-protocol": "http",
        "batch-timeout": "100ms",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((address.hostname, address.port)) == 0

    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [Path(rotel.__file__).parent / "rotel-agent", "start", *words], stdout=log, stderr=log
        )
    try:
        eventually("the collector listens", listens)
        yield url
    finally:
        process.kill()
        process.wait()


async def test_a_collector_gets_the_trace_of_each_rollout_and_the_metrics_of_each_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "rollouts.jsonl"
    with otlp_receiver() as received, otel_collector(received.url, tmp_path / "rotel.log") as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        async with (
            processes(load_config(), tmp_path) as stack,
            rollyard.connect(stack.head_url, token=stack.keys.token) as found,
        ):
            await rollyard.collect(found, EXAMPLES, output, agent_name=AGENT, limit=2)
            servers = {AGENT, "grl_sokoban_resources_server", "policy_model"}
            await until(lambda: {span.service for span in received.spans} == {*servers, "collector"})
            await until(lambda: {service for service, _ in received.metrics} == servers)
        traces = {row["_ng_trace_id"] for row in read_rows(output)}
        assert {span.trace for span in received.spans} == traces
