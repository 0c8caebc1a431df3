"""Wraps handlers to inject the faults of a real endpoint as raw HTTP responses.

The random numbers depend on how many requests came before, so a retry of the same request can succeed.
"""

from __future__ import annotations

import asyncio
import functools
from enum import StrEnum

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollyard.responses_api_models.builtin_model.policy import RandomDraws
from rollyard.services.http.request import Handler, RawRequest, RawResponse

TRUNCATED = b'{"id": "resp_torn", "object": "response", "status": "completed", "output": [{"type": "mess'


class Fault(StrEnum):
    """A fault injected into one request."""

    ERROR = "error"
    """Status 500 with OpenAI's error object."""
    RATE_LIMIT = "rate_limit"
    """Status 429 with `Retry-After`."""
    HANG = "hang"
    """No response for `hang_s` seconds, then status 504."""
    GARBAGE = "garbage"
    """Status 200 with truncated JSON."""
    SLOW = "slow"
    """The regular response, `slow_s` seconds late."""


class FaultSettings(BaseModel):
    """Fault rates as fractions of all requests, which must not add up to more than 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    error_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get status 500."""
    rate_limit_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get status 429."""
    hang_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get no response for `hang_s`, or until the caller disconnects."""
    garbage_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get truncated JSON with status 200."""
    slow_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of requests that get the regular response `slow_s` seconds late."""
    slow_s: float = Field(default=2.0, ge=0)
    """Delay of a slow response, in seconds."""
    hang_s: float = Field(default=600.0, ge=0)
    """Duration of a hang, in seconds."""
    retry_after_s: int = Field(default=1, ge=0)
    """Value of `Retry-After`."""

    @model_validator(mode="after")
    def _fit(self) -> FaultSettings:
        if (total := sum(self.rates.values())) > 1 + 1e-9:
            raise ValueError(f"the fault rates add up to {total:g}; expected at most 1")
        return self

    @property
    def rates(self) -> dict[Fault, float]:
        return {fault: getattr(self, f"{fault}_rate") for fault in Fault}


class Faults:
    """Wraps handlers with faults and delays; if all rates and delays are 0, handlers are returned unwrapped."""

    def __init__(self, settings: FaultSettings, *, seed: int, latency_s: float, jitter_s: float) -> None:
        self._settings = settings
        self._key = f"faults/{seed}"
        self._latency_s = latency_s
        self._jitter_s = jitter_s
        self._requests = 0
        self.waits = bool(latency_s or jitter_s or settings.hang_rate or settings.slow_rate)
        """Whether requests can wait, because latency, hangs or slow responses are configured."""

    def around(self, handler: Handler) -> Handler:
        if not self.waits and not any(self._settings.rates.values()):
            return handler

        @functools.wraps(handler)
        async def faulty(call: RawRequest) -> bytes | RawResponse:
            draws = RandomDraws(b"%d" % self._requests, self._key)
            self._requests += 1
            fault = self._pick(draws.unit())
            await asyncio.sleep(self._latency_s + self._jitter_s * draws.unit())
            if fault is Fault.SLOW:
                await asyncio.sleep(self._settings.slow_s)
            if fault is None or fault is Fault.SLOW:
                return await handler(call)
            return await self._fail(fault)

        return faulty

    def _pick(self, drawn: float) -> Fault | None:
        for fault, rate in self._settings.rates.items():
            if drawn < rate:
                return fault
            drawn -= rate
        return None

    async def _fail(self, fault: Fault) -> RawResponse:
        if fault is Fault.ERROR:
            return _error(500, "The server had an error while processing your request.", "server_error", None)
        if fault is Fault.RATE_LIMIT:
            retry = ((b"retry-after", b"%d" % self._settings.retry_after_s),)
            return _error(429, "Rate limit reached for requests.", "requests", "rate_limit_exceeded", retry)
        if fault is Fault.GARBAGE:
            return RawResponse(TRUNCATED)
        await asyncio.sleep(self._settings.hang_s)
        return _error(504, "The engine did not respond in time.", "server_error", "timeout")


def _error(
    status: int, text: str, kind: str, code: str | None, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> RawResponse:
    error = {"message": text, "type": kind, "param": None, "code": code}
    return RawResponse(orjson.dumps({"error": error}), status, headers)
