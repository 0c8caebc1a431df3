"""Telemetry: what OpenTelemetry's environment variables ask for. Without them, nothing of it is imported or called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollyard.records.errors import OperatorError
from rollyard.records.optional import EXTRAS, load

if TYPE_CHECKING:
    from rollyard.services.http.otel import Telemetry

SIGNALS = ("TRACES", "METRICS")
PROTOCOL = "http/protobuf"


def open_telemetry(environ: Mapping[str, str], server: str) -> Telemetry | None:
    """Start the telemetry of this process, which is the server `server` or hosts several; None if it is off.

    It is on if OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER is `otlp`, or if an endpoint is set, as in OpenTelemetry's
    own SDKs. The SDK reads the other variables itself. Raises OperatorError for another exporter, or without the SDK.
    """
    asked = {signal: _asked_by(environ, signal) for signal in SIGNALS}
    if not any(asked.values()):
        return None
    why = f"telemetry, which {' and '.join(sorted({*asked.values()} - {''}))} asks for,"
    trace, metric = (load(module, "otel", why) for module in EXTRAS["otel"].packages)
    for signal in (signal for signal, variable in asked.items() if variable):
        name, protocol = _otlp(environ, signal, "PROTOCOL")
        if protocol not in ("", PROTOCOL):
            raise OperatorError(f"{name} is {protocol!r}; expected {PROTOCOL} (port 4318, not 4317)")
        name, endpoint = _otlp(environ, signal, "ENDPOINT")
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise OperatorError(f"{name} is {endpoint!r}; expected a URL, such as http://127.0.0.1:4318")
        name, timeout_s = _otlp(environ, signal, "TIMEOUT")
        try:
            is_valid = float(timeout_s or 1) > 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise OperatorError(f"{name} is {timeout_s!r}; expected seconds")
    interval_ms = environ.get("OTEL_METRIC_EXPORT_INTERVAL") or "60000"
    if not interval_ms.isdecimal() or not int(interval_ms):
        raise OperatorError(f"OTEL_METRIC_EXPORT_INTERVAL is {interval_ms!r}; expected milliseconds")
    from rollyard.services.http.otel import Telemetry

    spans = trace.OTLPSpanExporter() if asked["TRACES"] else None
    metrics = metric.OTLPMetricExporter() if asked["METRICS"] else None
    return Telemetry(server, spans, metrics, int(interval_ms) / 1000)


def _asked_by(environ: Mapping[str, str], signal: str) -> str:
    """Return the variable that asks for the signal; empty if none does."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    variable = f"OTEL_{signal}_EXPORTER"
    exporter = environ.get(variable, "").strip().lower()
    if exporter not in ("", "otlp", "none"):
        raise OperatorError(f"{variable} is {exporter!r}; expected otlp or none")
    if exporter:
        return variable if exporter == "otlp" else ""
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return next((name for name in endpoints if environ.get(name)), "")


def _otlp(environ: Mapping[str, str], signal: str, setting: str) -> tuple[str, str]:
    """Return the variable that holds a setting of the signal's exporter, and its value; empty if there is none."""
    names = (f"OTEL_EXPORTER_OTLP_{signal}_{setting}", f"OTEL_EXPORTER_OTLP_{setting}")
    return next(((name, value) for name in names if (value := environ.get(name))), ("", ""))
