"""Finds the GPUs of this host."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

_LISTING_S = 30.0
_DEVICES = ("nvidia*", "nvhost*", "dxg", "kfd")
"""Device files of NVIDIA's drivers, also on Jetson and in WSL, and of AMD's."""


def visible_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """Return the GPUs that a process with this environment can use; None if none is found."""
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu.strip() for gpu in named.split(",") if gpu.strip() not in ("", "-1")] or None
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [line.split()[1].rstrip(":") for line in listed.stdout.splitlines() if line.startswith("GPU ")] or None


def present_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str] | None:
    """Return the visible GPUs; None if CUDA_VISIBLE_DEVICES names some although this host has no GPU."""
    gpus = visible_gpus(environ)
    return gpus if gpus and any(found for name in _DEVICES for found in devices.glob(name)) else None
