"""Checkpoints for the tests beside: small, and whole or broken on purpose."""

from __future__ import annotations

import struct
from pathlib import Path

import orjson


def safetensors(values: int = 4) -> bytes:
    """A file of one float32 tensor."""
    header = orjson.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}})
    return struct.pack("<Q", len(header)) + header + bytes(4 * values)


def checkpoint(folder: Path, *shards: str, index: bool = False) -> Path:
    """A whole checkpoint; `index`: its shards are named in one."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for shard in shards or ("model.safetensors",):
        (folder / shard).write_bytes(safetensors())
    if index:
        weights = {f"w{number}": shard for number, shard in enumerate(shards)}
        (folder / "model.safetensors.index.json").write_bytes(orjson.dumps({"weight_map": weights}))
    return folder
