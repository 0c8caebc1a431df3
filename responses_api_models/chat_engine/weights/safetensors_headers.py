"""Reads the tensors of a checkpoint from the headers of its safetensors files.

The checks include all those of the safetensors library, because an engine that finds an invalid file during a load has
already lost its old weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
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


def weight_files(folder: Path) -> list[Path]:
    """Return the files that vLLM loads: those in the index, else every *.safetensors.

    Raises Failure bad_request if the index is invalid or ambiguous.
    """
    if not (folder / INDEX).exists():
        return sorted(folder.glob("*.safetensors"))
    named = _weight_map(folder).values()
    odd = next((name for name in named if not isinstance(name, str) or PurePath(name).name != name), None)
    if odd is not None:
        raise bad_request(f"{folder / INDEX} names {str(odd)[:100]!r}; expected the name of a file in that folder")
    if (folder / SINGLE).exists() and SINGLE not in named:
        detail = f"{folder} has {SINGLE} and an index that names other files, which is ambiguous"
        raise bad_request(f"{detail}: save each version in an empty folder")
    return [folder / name for name in sorted(set(named))]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the folder by name. Raises Failure bad_request if a file is missing or invalid."""
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        for tensor in read_header(file):
            if tensor.name in found:
                raise bad_request(
                    f"{tensor.name} is in both {found[tensor.name].file} and {file}; expected it only once"
                )
            found[tensor.name] = tensor
    if (folder / INDEX).exists():
        _compare_index(folder, found)
    return found


def read_header(file: Path) -> list[Tensor]:
    """Return the tensors of a file, sorted by offset. Raises Failure bad_request if the file is missing or invalid."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > MAX_HEADER_LENGTH:
                raise ValueError(f"the header has {length} bytes; the limit is {MAX_HEADER_LENGTH}")
            header: Any = orjson.loads(opened.read(length))
            tensors = [_tensor(name, entry, file, 8 + length) for name, entry in header.items() if _is_tensor(name)]
            found = file.stat().st_size
    except FileNotFoundError:
        raise bad_request(f"{file} is missing, but {INDEX} refers to it") from None
    except (OSError, ValueError, AttributeError, KeyError, TypeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise bad_request(
            f"{file} cannot be read as safetensors ({reason}); another process may still be writing it"
        ) from error
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    expected = 8 + length
    for tensor in tensors:
        if tensor.start != expected or tensor.end < expected:
            raise bad_request(
                f"{file} is corrupted: the bytes of {tensor.name} do not follow those of the previous tensor"
            )
        expected = tensor.end
    if found != expected:
        raise bad_request(
            f"{file} is incomplete: it has {found} bytes instead of {expected}; another process may still be writing it"
        )
    return tensors


def _is_tensor(name: str) -> bool:
    return name != "__metadata__"


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


def _weight_map(folder: Path) -> Json:
    named = read_json(folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise bad_request(f"{folder / INDEX} has no weight_map, which maps each tensor to its file")
    return named


def _compare_index(folder: Path, found: dict[str, Tensor]) -> None:
    for name, file in _weight_map(folder).items():
        if name not in found or found[name].file.name != file:
            raise bad_request(f"{folder / INDEX} maps {name} to {file}, but that file does not contain it")


def read_json(file: Path) -> Json:
    """Read a file that contains one JSON object. Raises Failure bad_request if it does not."""
    try:
        value: Any = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        detail = f"{file} cannot be read ({error}); expected a folder written by save_pretrained"
        raise bad_request(detail) from error
    if not isinstance(value, dict):
        raise bad_request(f"{file} is not a JSON object")
    return value
