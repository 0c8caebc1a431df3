"""Which GPUs there are, and which engine gets which."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.services.errors import OperatorError

_LISTING_S = 30.0
"""nvidia-smi takes seconds when no driver is loaded yet."""


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """GPUs that a process with this environment may use, as CUDA_VISIBLE_DEVICES names them; none on other machines."""
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu.strip() for gpu in named.split(",") if gpu.strip() not in ("", "-1")]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_S, check=True)
        return gpu_indices(listed.stdout)
    return []


def gpu_indices(listing: str) -> list[str]:
    """Their numbers, from what `nvidia-smi -L` prints."""
    return [line.split()[1].rstrip(":") for line in listing.splitlines() if line.startswith("GPU ")]


def gpu_assignments(settings: LocalVllmModelSettings, visible: Sequence[str]) -> list[list[str]]:
    """The GPUs of each engine; empty where vLLM shall decide: on a CPU, on a Ray cluster. Raises OperatorError."""
    count, each = settings.engine_replicas, settings.gpus_per_engine
    gpus = [str(gpu) for gpu in settings.gpus] if settings.gpus is not None else list(visible)
    if settings.ray_address or (not gpus and settings.gpus is None):
        return [[] for _ in range(count)]
    if len(gpus) < each:
        raise OperatorError(
            f"one engine needs {each} GPUs (tensor x pipeline x data parallel size), this machine offers {len(gpus)} "
            f"({', '.join(gpus) or 'gpus is empty'}): make it smaller, or join machines with Ray and set ray_address"
        )
    if len(gpus) < count * each:
        raise OperatorError(
            f"engine_replicas={count} engines of {each} GPUs need {count * each}, this machine offers {len(gpus)} "
            f"({', '.join(gpus)}): at most engine_replicas={len(gpus) // each}"
        )
    return [gpus[number * each : (number + 1) * each] for number in range(count)]
