"""Checkpoints of a tiny model: real safetensors files, written byte by byte so that a test can corrupt any byte."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rollyard.records.types import Json

EMBEDDINGS = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
SHAPES = {EMBEDDINGS: [8, 4], "model.layers.0.weight": [4, 4], "model.layers.1.weight": [4, 4], HEAD: [8, 4]}
CONFIG: Json = {"architectures": ["TinyForCausalLM"], "model_type": "tiny", "num_attention_heads": 2, "vocab_size": 8}
CONFIG["tie_word_embeddings"] = False
INDEX = "model.safetensors.index.json"
WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I32": 4, "F8_E5M2": 1, "F8_E4M3": 1}


def write_checkpoint(
    folder: Path,
    shapes: Mapping[str, list[int]] = SHAPES,
    *,
    seed: int = 0,
    dtype: str = "F32",
    tokens: Iterable[str] = (),
    **config: Any,
) -> str:
    """Write a complete checkpoint to `folder`. Different seeds give different weights."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_bytes(orjson.dumps({**CONFIG, **config}))
    if tokens:
        vocabulary = {token: number for number, token in enumerate(tokens)}
        (folder / "tokenizer.json").write_bytes(orjson.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    write_shard(folder / "model.safetensors", shapes, seed=seed, dtype=dtype)
    return str(folder)


def write_tied_checkpoint(folder: Path, **more: Any) -> str:
    """Write a checkpoint whose output head shares the embeddings (tied weights)."""
    shapes = {name: shape for name, shape in SHAPES.items() if name != HEAD}
    return write_checkpoint(folder, shapes, tie_word_embeddings=True, **more)


def write_shard(file: Path, shapes: Mapping[str, list[int]], *, seed: int = 0, dtype: str = "F32") -> None:
    """Write one safetensors file with finite random weights."""
    rng = np.random.default_rng(seed)
    header: Json = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, shape in shapes.items():
        size = WIDTHS[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += rng.integers(0, 32, size, np.uint8).tobytes()
    head = orjson.dumps(header)
    file.write_bytes(len(head).to_bytes(8, "little") + head + data)


def write_sharded_checkpoint(folder: Path, **more: Any) -> str:
    """Write a checkpoint of two files and an index."""
    write_checkpoint(folder, **more)
    (folder / "model.safetensors").unlink()
    names = list(SHAPES)
    parts = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file, tensors in parts.items():
        write_shard(folder / file, {name: SHAPES[name] for name in tensors})
    weight_map = {name: file for file, tensors in parts.items() for name in tensors}
    (folder / INDEX).write_bytes(orjson.dumps({"weight_map": weight_map}))
    return str(folder)


def overwrite_element(file: Path, tensor: str, value: bytes, index: int = -1) -> None:
    """Replace the tensor's element at `index` by `value`; -1 is the last element."""
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    begin, end = orjson.loads(bytes(content[8 : 8 + length]))[tensor]["data_offsets"]
    offset = 8 + length + (end - len(value) if index < 0 else begin + index * len(value))
    content[offset : offset + len(value)] = value
    file.write_bytes(bytes(content))


def rewrite_header(file: Path, **entries: Any) -> None:
    """Change entries of a file's header and leave its data as it is; None removes an entry."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = orjson.loads(content[8 : 8 + length]) | entries
    head = orjson.dumps({name: entry for name, entry in header.items() if entry is not None})
    file.write_bytes(len(head).to_bytes(8, "little") + head + content[8 + length :])
