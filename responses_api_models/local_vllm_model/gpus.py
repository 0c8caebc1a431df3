"""Finds the visible GPUs and assigns them to engines."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

from rollyard.records.errors import OperatorError
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings

_LISTING_S = 30.0
"""Timeout for nvidia-smi, which takes seconds if the driver is not loaded yet."""


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs that a process with this environment can use, named as in CUDA_VISIBLE_DEVICES."""
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu.strip() for gpu in named.split(",") if gpu.strip() not in ("", "-1")]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_S, check=True)
        return gpu_indices(listed.stdout)
    return []


def gpu_indices(listing: str) -> list[str]:
    """Parse the GPU indices from the output of `nvidia-smi -L`."""
    return [line.split()[1].rstrip(":") for line in listing.splitlines() if line.startswith("GPU ")]


def gpu_assignments(settings: LocalVllmModelSettings, visible: Sequence[str]) -> list[list[str]]:
    """Return the GPUs for each engine; empty lists if vLLM decides (on a CPU or a Ray cluster).

    Raises OperatorError if there are too few GPUs.
    """
    count, each = settings.engine_replicas, settings.gpus_per_engine
    gpus = [str(gpu) for gpu in settings.gpus] if settings.gpus is not None else list(visible)
    if settings.ray_address or (not gpus and settings.gpus is None):
        return [[] for _ in range(count)]
    if len(gpus) < each:
        raise OperatorError(
            f"one engine needs {each} GPUs (tensor x pipeline x data parallel size), but this host has {len(gpus)} "
            f"({', '.join(gpus) or 'gpus is empty'}): reduce the sizes, or connect hosts with Ray and set ray_address"
        )
    if len(gpus) < count * each:
        raise OperatorError(
            f"engine_replicas={count} needs {count * each} GPUs ({each} per engine), but this host has {len(gpus)} "
            f"({', '.join(gpus)}): set engine_replicas to at most {len(gpus) // each}"
        )
    return [gpus[number * each : (number + 1) * each] for number in range(count)]
