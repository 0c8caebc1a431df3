"""Checks whether a folder contains a complete checkpoint, in a format that vLLM can load."""

from __future__ import annotations

import re
import shutil
import struct
import zipfile
from pathlib import Path

import orjson

_STEP = re.compile(r"(?:steps?|checkpoint|ckpt|iter|iteration|epoch)[-_=.]?(\d+)", re.IGNORECASE)
_ENDS = re.compile(r"(?:^|[-_])(\d+)$")
_UNFINISHED = re.compile(r"\.|tmp[-_.]|.*[-_.](?:tmp|temp|partial|incomplete|writing)$", re.IGNORECASE)
_ONE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = "pytorch_model.bin"
_PICKLED_INDEX = "pytorch_model.bin.index.json"
WEIGHTS = (".safetensors", ".bin")


def step_of(name: str) -> int | None:
    """Return the training step in a name: 40 in `run_step40`, `checkpoint-40`, `40`; None for `Qwen3-1.7B`, `final`."""
    found = _STEP.findall(name) or _ENDS.findall(name)
    return int(found[-1]) if found else None


def unfinished(name: str) -> bool:
    """Return whether the name is that of a checkpoint that is still being written: `tmp-checkpoint-9`, `.step_9`."""
    return _UNFINISHED.match(name) is not None


def find_missing_part(folder: Path, marker: str | None = None) -> str:
    """Return why a checkpoint is incomplete; empty if it is complete.

    A complete checkpoint has a config, and each weight file has the length that is stated in its header. This is not
    yet the case while a checkpoint is being written or copied. `marker`: a file that must also exist, because the
    training program writes it last.
    """
    if absent := find_absent_file(folder, marker):
        return absent
    try:
        orjson.loads((folder / "config.json").read_bytes())
    except ValueError:
        return "config.json is incomplete"
    for file in _shards(folder):
        if file.suffix == ".bin":
            if not zipfile.is_zipfile(file):  # the zip directory is written last
                return f"{file.name} is incomplete"
        elif (length := _length(file)) != (size := file.stat().st_size):
            return f"{file.name} has {size:,} bytes" + (
                f"; expected {length:,}" if length >= 0 else " and an incomplete header"
            )
    return ""


def find_absent_file(folder: Path, marker: str | None = None) -> str:
    """Return which file of a checkpoint is missing; empty if all files exist, even if some are incomplete."""
    if marker is not None and not (folder / marker).exists():
        return f"{marker} is missing"
    if not (folder / "config.json").is_file():
        return "config.json is missing"
    files = _shards(folder)
    if not files:
        return "the weights are missing"
    return next((f"{file.name} is missing" for file in files if not file.is_file()), "")


def stage(folder: Path, target: Path) -> Path:
    """Return a folder that vLLM can load: `folder`, or `target` with links to its files.

    Links are needed if the index does not match the only weight file. Some training code saves `model.safetensors`
    next to the index of the original model.
    """
    names = _named_by(folder / _INDEX)
    if not (folder / _INDEX).is_file() or not (folder / _ONE).is_file() or all((folder / n).is_file() for n in names):
        return folder
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in folder.iterdir():
        if file.name != _INDEX:
            (target / file.name).symlink_to(file.resolve())
    return target


def _shards(folder: Path) -> list[Path]:
    """Return the weight files: those listed in the index, or a single file even if the index lists a different one."""
    for one, index in ((_ONE, _INDEX), (_PICKLED, _PICKLED_INDEX)):
        named = [folder / name for name in _named_by(folder / index)]
        if len(named) <= 1 and (folder / one).is_file():
            return [folder / one]
        if named:
            return named
    return []


def _named_by(index: Path) -> list[str]:
    try:
        weights = orjson.loads(index.read_bytes())["weight_map"].values()
        return sorted({Path(str(name)).name for name in weights})
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"the file list in {index.name}"]  # the index is incomplete or invalid


def _length(file: Path) -> int:
    """Return the total length of a safetensors file according to its header; -1 if the header is incomplete."""
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
