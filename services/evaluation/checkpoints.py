"""Checkpoints: whether a folder holds a model's weights, whole, and in a form that vLLM loads."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import orjson

_NUMBER = re.compile(r"\d+")
_ONE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = "pytorch_model.bin"


def step_of(name: str) -> int | None:
    """The training step in a checkpoint's name: its last number."""
    found = _NUMBER.findall(name)
    return int(found[-1]) if found else None


def what_is_missing(folder: Path) -> str:
    """Why a checkpoint is not whole; empty when it is.

    Whole: a config, and every file of weights as long as its own header says, so that one which is still being
    written or copied is not taken.
    """
    if not (folder / "config.json").is_file():
        return "config.json is not there"
    if (folder / _PICKLED).is_file() and not (folder / _ONE).is_file() and not (folder / _INDEX).is_file():
        return ""
    files = _shards(folder)
    if not files:
        return "no weights are there"
    for file in files:
        if not file.is_file():
            return f"{file.name} is not there"
        if (length := _length(file)) != file.stat().st_size:
            return f"{file.name} has {file.stat().st_size:,} bytes of {length:,}"
    return ""


def stage(folder: Path, target: Path) -> Path:
    """`folder` as vLLM can load it: itself, or `target` with links to its files where an index names its only file of
    weights otherwise (training code that saves `model.safetensors` beside another's index).
    """
    names = _named_by_index(folder)
    if not (folder / _INDEX).is_file() or not (folder / _ONE).is_file() or all((folder / n).is_file() for n in names):
        return folder
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in folder.iterdir():
        if file.name != _INDEX:
            (target / file.name).symlink_to(file.resolve())
    return target


def _shards(folder: Path) -> list[Path]:
    """Files of weights: what the index names, or the one file where the index names another."""
    named = [folder / name for name in _named_by_index(folder)]
    if len(named) <= 1 and (folder / _ONE).is_file():
        return [folder / _ONE]
    return named


def _named_by_index(folder: Path) -> list[str]:
    try:
        weights = orjson.loads((folder / _INDEX).read_bytes())["weight_map"].values()
        return sorted({Path(str(name)).name for name in weights})
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [_INDEX]  # half written: it is no file of weights, and its length will not fit


def _length(file: Path) -> int:
    """Bytes that a safetensors file has when it is whole, by its header; -1 where even that is not there."""
    try:
        with file.open("rb") as opened:
            size = opened.read(8)
            if len(size) < 8:
                return -1
            (header,) = struct.unpack("<Q", size)
            described = orjson.loads(opened.read(min(header, 100_000_000)))
        ends = [entry["data_offsets"][1] for name, entry in described.items() if name != "__metadata__"]
        return int(8 + header + max(ends, default=0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return -1
