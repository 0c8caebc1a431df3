"""Small checkpoints for the tests of this folder."""

from __future__ import annotations

import struct
from pathlib import Path

import orjson


def safetensors(values: int = 4) -> bytes:
    """The bytes of a file with one float32 tensor."""
    header = orjson.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}})
    return struct.pack("<Q", len(header)) + header + bytes(4 * values)


def checkpoint(folder: Path, *shards: str, index: bool = False) -> Path:
    """Write a complete checkpoint; with `index`, also an index file that lists its shards."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for shard in shards or ("model.safetensors",):
        (folder / shard).write_bytes(safetensors())
    if index:
        weights = {f"w{number}": shard for number, shard in enumerate(shards)}
        (folder / "model.safetensors.index.json").write_bytes(orjson.dumps({"weight_map": weights}))
    return folder
