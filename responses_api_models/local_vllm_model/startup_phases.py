"""Determines the startup phase of vLLM from its log. The patterns match vLLM 0.32 and, for the most part, older
versions.

Phases are only displayed; no decision depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

FIRST = "importing vLLM"

_COUNT = r"\|\s*(\d+/\d+)"
_PHASES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"non-default args:|Resolved architecture:", "reading the config"),
        (r"Initializing a V1 LLM engine", "starting the engine"),
        (r"Waiting for creating a placement group", "waiting for Ray to find the GPUs"),
        (r"Starting to load model", "loading weights"),
        (r"Loading (?:safetensors|pt) checkpoint shards:.*" + _COUNT, "loading weights {}"),
        (r"Multi-thread loading shards:.*" + _COUNT, "loading weights {}"),
        (r"Loading weights took|Model loading took", "profiling memory"),
        (r"Dynamo bytecode transform time|Compiling a graph for|Directly load the compiled graph", "compiling"),
        (r"torch\.compile (?:and initial profiling|took|takes)|Initial profiling/warmup run took", "profiling memory"),
        (r"Available KV cache memory|KV cache size:", "allocating the KV cache"),
        (r"JIT kernel warmup starting|[Aa]utotun\w+ ", "warming up kernels"),
        (r"Capturing CUDA graphs.*" + _COUNT, "capturing CUDA graphs {}"),
        (r"init engine \(profile, create kv cache, warmup model\) took", "starting the API server"),
        (r"Starting vLLM (?:API )?server", "starting the API server"),
    )
)


def phase_after(lines: Iterable[str], before: str = FIRST) -> str:
    """Return the phase that the last matching line shows; `before` if no line matches."""
    phase = before
    for line in lines:
        for pattern, template in _PHASES:
            if found := pattern.search(line):
                phase = template.format(*found.groups())
                break
    return phase


def kind(phase: str) -> str:
    """Return the phase without its progress: `loading weights` for `loading weights 3/8`."""
    return phase.rstrip("0123456789/ ")
