"""Reads the tensors of a safetensors file from its header.

The checks include all those of the safetensors library, because an engine that finds an invalid file during a load has
already lost its old weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.types import Json

MAX_HEADER_LENGTH = 100_000_000
"""The safetensors library's own limit, in bytes."""
SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""Bytes per element for each tensor type. The sizes of tensors of other types are not checked."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, whose bytes are in `file` from `start` to `end`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


def read_header(file: Path) -> list[Tensor]:
    """Return the tensors of a file, sorted by offset. Raises ValueError if it is invalid or incomplete."""
    found = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > MAX_HEADER_LENGTH:
            raise ValueError(f"{file.name} has a header of {length:,} bytes; the limit is {MAX_HEADER_LENGTH:,}")
        text = opened.read(length)
    try:
        header: Any = orjson.loads(text)
        tensors = [_tensor(name, entry, file, 8 + length) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, AttributeError, KeyError, TypeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise ValueError(f"{file.name} has {found:,} bytes and an invalid or incomplete header ({reason})") from error
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    expected = 8 + length
    for tensor in tensors:
        if tensor.start != expected or tensor.end < expected:
            raise ValueError(f"{file.name} is corrupted: {tensor.name} does not follow the previous tensor")
        expected = tensor.end
    if found != expected:
        raise ValueError(f"{file.name} has {found:,} bytes; expected {expected:,}")
    return tensors


def _tensor(name: str, entry: Json, file: Path, base: int) -> Tensor:
    shape = tuple(entry["shape"])
    start, end = entry["data_offsets"]
    numbers = (*shape, start, end)
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise ValueError(f"{name} has a shape or offsets with values that are negative or not integers")
    size = SIZES.get(dtype := str(entry["dtype"]))
    if size is not None and size * math.prod(shape) != end - start:
        raise ValueError(f"{name} has {end - start} bytes; {dtype} {list(shape)} takes {size * math.prod(shape)}")
    return Tensor(name, dtype, shape, file, base + start, base + end)
