"""Reads the tensors of a checkpoint from the headers of the safetensors files that its index names."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

import orjson

from rollyard.records import safetensors_headers
from rollyard.records.safetensors_headers import Tensor
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


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
        return safetensors_headers.read_header(file)
    except FileNotFoundError:
        raise bad_request(f"{file} is missing, but {INDEX} refers to it") from None
    except (OSError, ValueError) as error:
        raise bad_request(
            f"{file} cannot be read as safetensors ({error}); another process may still be writing it"
        ) from error


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
