"""When telemetry is on, by OpenTelemetry's environment variables."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from types import SimpleNamespace

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from rollyard.records import optional
from rollyard.records.activity import EPISODE_ID_HEADER
from rollyard.records.errors import OperatorError
from rollyard.services.http.otel import Telemetry
from rollyard.services.http.request import HttpResponse, RawRequest, SentHeaders
from rollyard.services.http.telemetry import open_telemetry
from rollyard.services.http.transport import HttpTransport, LocalTransport, Transport
from tests.support.otlp import Received, otlp_receiver
from tests.support.waiting import until

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "mine"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", ENDPOINT: "http://127.0.0.1:4318"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"},
    ],
)
def test_telemetry_is_off_unless_a_variable_asks_for_it(environ: Mapping[str, str]) -> None:
    assert open_telemetry(environ, "agent") is None


def test_servers_and_collectors_without_telemetry_import_no_sdk() -> None:
    code = (
        "import sys, rollyard.cli.collect_rollouts, rollyard.services.runtime.serve, rollyard.services.runtime.stack\n"
        "from rollyard.services.http.telemetry import open_telemetry\n"
        "assert open_telemetry({}, 'agent') is None\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "OTEL_TRACES_EXPORTER is 'jaeger'; expected otlp or none"),
        (
            {ENDPOINT: "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; expected http/protobuf",
        ),
        ({ENDPOINT: "localhost:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT is 'localhost:4318'; expected a URL"),
        (
            {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": "1 s"},
            "OTEL_METRIC_EXPORT_INTERVAL is '1 s'; expected milliseconds",
        ),
        (
            {ENDPOINT: "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL is 'grpc'; expected http/protobuf",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s"},
            "OTEL_EXPORTER_OTLP_TIMEOUT is '10s'; expected seconds",
        ),
    ],
)
def test_an_unsupported_setting_is_refused_with_the_variable_and_what_it_may_be(
    environ: Mapping[str, str], expected: str
) -> None:
    with pytest.raises(OperatorError, match=expected):
        open_telemetry(environ, "agent")


def test_without_the_extra_telemetry_is_refused_with_the_variable_and_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optional, "is_installed", lambda package: False)
    with pytest.raises(OperatorError, match=rf"{ENDPOINT} asks for.*rollyard\[otel\]"):
        open_telemetry({ENDPOINT: "http://127.0.0.1:4318"}, "agent")


@contextlib.asynccontextmanager
async def traced(url: str, calls: list[Mapping[str, str]]) -> AsyncIterator[tuple[Telemetry, Transport, Received]]:
    """Traces, a transport that makes them, and what receives them; `calls` gets the headers of what `url` is sent."""

    async def answer(path: str, body: bytes, headers: Mapping[str, str]) -> HttpResponse:
        calls.append(headers)
        return HttpResponse(200, {}, b"{}")

    with otlp_receiver() as received, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENDPOINT, received.url)
        telemetry = open_telemetry({"OTEL_TRACES_EXPORTER": "otlp"}, "agent")
        assert telemetry is not None
        local = LocalTransport(HttpTransport())
        local.mount(url, answer, answer)  # type: ignore[arg-type]
        yield telemetry, telemetry.transport(local), received
        await local.close()


async def test_a_caller_s_trace_goes_on_through_the_server_to_what_it_calls() -> None:
    calls: list[Mapping[str, str]] = []
    async with traced("http://environment:1", calls) as (telemetry, transport, received):

        async def handle(call: RawRequest) -> bytes:
            await transport.send("POST", "http://environment:1/move", b"{}", SentHeaders(), 5.0)
            return b"{}"

        await telemetry.handlers("agent")("/run", handle)(RawRequest("/run", {b"traceparent": CALLER.encode()}, b"{}"))
        await telemetry.close()
    trace, parent = CALLER.split("-")[1:3]
    server, client = received.spans[1], received.spans[0]
    assert (server.name, server.trace, server.parent) == ("POST /run", trace, parent)
    assert (client.name, client.trace, client.parent) == ("execute_tool move", trace, server.span)
    assert calls[0]["traceparent"] == f"00-{trace}-{client.span}-01"


async def test_the_address_in_a_span_has_no_password() -> None:
    async with traced("http://user:secret@environment:1", []) as (telemetry, transport, received):
        sent = SentHeaders({EPISODE_ID_HEADER: "1" * 32})
        await transport.send("POST", "http://user:secret@environment:1/verify", b"{}", sent, 5.0)
        await telemetry.close()
    [span] = received.spans
    assert span.attributes["url.full"] == "http://environment:1/verify"


async def test_metrics_that_cannot_be_read_once_are_exported_the_next_time() -> None:
    readings, sent = iter([False, True]), threading.Event()

    def collect() -> Iterable[Metric]:
        if not next(readings, True):
            raise ValueError("no reading")
        yield GaugeMetricFamily("a", "A gauge", value=1.0)

    exporter = SimpleNamespace(export=lambda data: sent.set())
    telemetry = Telemetry("env", None, exporter, 0.001)  # type: ignore[arg-type]
    exporting = asyncio.create_task(telemetry.export_metrics("env", collect))
    await until(sent.is_set)
    exporting.cancel()
    await exporting
