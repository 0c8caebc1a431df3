"""Tensors: what the safetensors files of a checkpoint hold, read from their headers alone.

A file must pass here every test that the safetensors library makes when it opens one: an engine that meets a bad file
in the middle of a load has already let go of its old weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import orjson

from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.services.types import Json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LONGEST_HEADER = 100_000_000
"""The safetensors library's own limit, in bytes."""
SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""Bytes of one element. Types that are not here are taken as they come."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor and where its bytes are: from `start` to `end` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


def weight_files(folder: Path) -> list[Path]:
    """The files that vLLM loads: those the index names, else every *.safetensors. Raises Failure bad_request."""
    if not (folder / INDEX).exists():
        return sorted(folder.glob("*.safetensors"))
    named = _weight_map(folder).values()
    odd = next((name for name in named if not isinstance(name, str) or PurePath(name).name != name), None)
    if odd is not None:
        raise bad_request(f"{folder / INDEX} names {str(odd)[:100]!r}; the name of a file in that folder is expected")
    if (folder / SINGLE).exists() and SINGLE not in named:
        told = f"{folder} holds {SINGLE} and an index that names other files, so which of them are meant is unclear"
        raise bad_request(f"{told}: save each version into an empty folder")
    return [folder / name for name in sorted(set(named))]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder by name. Raises Failure bad_request: a file is missing, broken or not whole."""
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        for tensor in read_header(file):
            if tensor.name in found:
                raise bad_request(f"{tensor.name} is in both {found[tensor.name].file} and {file}: which one is meant?")
            found[tensor.name] = tensor
    if (folder / INDEX).exists():
        _compare_index(folder, found)
    return found


def read_header(file: Path) -> list[Tensor]:
    """The tensors of one file, in the order of their bytes. Raises Failure bad_request."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header: Any = orjson.loads(opened.read(length))
            tensors = [_tensor(name, entry, file, 8 + length) for name, entry in header.items() if _is_one(name)]
            found = file.stat().st_size
    except FileNotFoundError:
        raise bad_request(f"{file} is missing, though {INDEX} names it") from None
    except (OSError, ValueError, AttributeError, KeyError, TypeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise bad_request(f"{file} cannot be read as safetensors ({reason}); is it still being written?") from error
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    place = 8 + length
    for tensor in tensors:
        if tensor.start != place or tensor.end < place:
            raise bad_request(
                f"{file} is damaged: the bytes of {tensor.name} do not follow those of the tensor before it"
            )
        place = tensor.end
    if found != place:
        raise bad_request(
            f"{file} is not whole: it has {found} bytes and should have {place}; is it still being written?"
        )
    return tensors


def _is_one(name: str) -> bool:
    return name != "__metadata__"


def _tensor(name: str, entry: Json, file: Path, base: int) -> Tensor:
    shape = tuple(entry["shape"])
    start, end = entry["data_offsets"]
    numbers = (*shape, start, end)
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise ValueError(f"{name} has a shape or offsets that are not counts")
    size = SIZES.get(dtype := str(entry["dtype"]))
    if size is not None and size * math.prod(shape) != end - start:
        raise ValueError(f"{name} has {end - start} bytes; {dtype} {list(shape)} takes {size * math.prod(shape)}")
    return Tensor(name, dtype, shape, file, base + start, base + end)


def _weight_map(folder: Path) -> Json:
    named = read_json(folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise bad_request(f"{folder / INDEX} has no weight_map, which says in which file each tensor is")
    return named


def _compare_index(folder: Path, found: dict[str, Tensor]) -> None:
    for name, file in _weight_map(folder).items():
        if name not in found or found[name].file.name != file:
            raise bad_request(f"{folder / INDEX} says that {name} is in {file}, and it is not there")


def read_json(file: Path) -> Json:
    """A file with one JSON object. Raises Failure bad_request."""
    try:
        value: Any = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        told = f"{file} cannot be read ({error}); expected a folder as save_pretrained writes it"
        raise bad_request(told) from error
    if not isinstance(value, dict):
        raise bad_request(f"{file} is not a JSON object")
    return value
