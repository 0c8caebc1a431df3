"""Assigns the visible GPUs to engines."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.records.errors import OperatorError
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings


def gpu_assignments(settings: LocalVllmModelSettings, visible: Sequence[str] | None) -> list[list[str]]:
    """Return the GPUs for each engine; empty lists if vLLM decides (on a CPU or a Ray cluster).

    Raises OperatorError if there are too few GPUs.
    """
    count, each = settings.engine_replicas, settings.gpus_per_engine
    gpus = [str(gpu) for gpu in settings.gpus] if settings.gpus is not None else list(visible or ())
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
