"""Limits: maximum sizes of the parts of an HTTP message. Larger messages are rejected."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    header_bytes: int = 64 * 1024
    """Maximum size of all header lines, including those of interim responses and trailers."""
    headers: int = 256
    body_bytes: int = 256 * MIB
    """Maximum size of the body, both encoded and decoded."""
    stream_bytes: int = 1024 * MIB
    """Maximum size of an uncompressed event stream. Streams are forwarded and never stored."""
    interim_responses: int = 16


RUN_LIMITS = Limits()
"""Limits for messages between servers of the run, which can contain complete rollouts."""

ENDPOINT_LIMITS = Limits(body_bytes=64 * MIB)
"""Limits for responses of engines and hosted APIs: about 500,000 tokens with their log-probabilities."""
