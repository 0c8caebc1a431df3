"""Limits: how large the parts of an HTTP message may be before it is given up."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one message."""

    head_bytes: int = 64 * 1024
    """Of all header lines together, interim answers and trailers included."""
    headers: int = 256
    body_bytes: int = 256 * MIB
    """Of the body as it is sent, and again after it is decoded."""
    stream_bytes: int = 1024 * MIB
    """Of a plain stream of events, which is passed on as it comes and never kept."""
    interim_answers: int = 16


RUN_LIMITS = Limits()
"""Between servers of the run, whose requests carry whole rollouts."""

ENDPOINT_LIMITS = Limits(body_bytes=64 * MIB)
"""For answers of engines and hosted APIs: some 500,000 tokens with their log-probabilities."""
