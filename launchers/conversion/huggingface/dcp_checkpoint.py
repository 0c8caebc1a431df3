"""A checkpoint of torch.distributed.checkpoint: names, shapes and values of its tensors, from any number of ranks.

NeMo-RL stores `{"model": model.state_dict()}`; a plain state dict works, too. Values are read in groups, each tensor
assembled from the chunks of all ranks, in one process.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rollyard.launchers.conversion.huggingface.checksums import verify_checksums
from rollyard.launchers.conversion.huggingface.dcp_metadata import read_metadata
from rollyard.launchers.conversion.huggingface.stages import stage
from rollyard.launchers.conversion.source import METADATA
from rollyard.records.errors import RunError

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of names that torch.compile, FSDP and activation checkpointing add."""


@dataclass(frozen=True)
class TensorEntry:
    """Name and layout of a tensor in the checkpoint, without its values."""

    key: str
    """Its name in the files."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


class DcpCheckpoint:
    """The model in a folder with `.metadata`. Raises RunError if a file is missing or truncated, or a chunk is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        metadata = read_metadata(folder / METADATA)
        self.files = frozenset(str(info.relative_path) for info in metadata.storage_data.values())
        self._require_files(metadata)
        self.tensors = _model_tensors(metadata)
        self._chunks: dict[str, list[tuple[int, int, str]]] = {}
        keys = {entry.key: name for name, entry in self.tensors.items()}
        for index, info in metadata.storage_data.items():
            if index.fqn in keys:
                found = (info.offset, info.length, keys[index.fqn])
                self._chunks.setdefault(str(info.relative_path), []).append(found)
        stored: dict[str, set[tuple[int, ...]]] = {}
        for index in metadata.storage_data:
            stored.setdefault(index.fqn, set()).add(tuple(index.offset or ()))
        for name, entry in self.tensors.items():
            chunks = metadata.state_dict_metadata[entry.key].chunks
            _require_chunks(name, entry, chunks, stored.get(entry.key, set()))

    def has_valid_checksums(self) -> bool:
        """Read all files. Raises RunError if one is damaged; returns False if the checkpoint has no checksums."""
        return verify_checksums(self._folder, self._chunks)

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Read tensors by name."""
        entries = {name: self.tensors[name] for name in names}
        values: dict[str, Any] = {e.key: torch.empty(e.shape, dtype=e.dtype) for e in entries.values()}
        with stage(f"reading {self._folder}", "A file is damaged"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that one process reads all files, which is intended
            dcp.load(
                values,
                storage_reader=dcp.FileSystemReader(self._folder),
                planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                no_dist=True,
            )
        return {name: values[entry.key] for name, entry in entries.items()}

    def _require_files(self, metadata: Any) -> None:
        ends: dict[str, int] = {}
        for info in metadata.storage_data.values():
            ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
        for name, end in sorted(ends.items()):
            file = self._folder / name
            if not file.resolve().is_relative_to(self._folder):
                raise RunError(f"{self._folder / METADATA} names the file {name}, which is outside the checkpoint")
            if not file.is_file():
                raise RunError(f"{file} is missing, although {METADATA} names it; copy the whole checkpoint")
            if (size := file.stat().st_size) < end:
                raise RunError(f"{file} is truncated: it has {size:,} bytes; expected at least {end:,}")


def _model_tensors(metadata: Any) -> dict[str, TensorEntry]:
    """Return the model's tensors by the names that the model gives them."""
    paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    keys = [key for key, value in metadata.state_dict_metadata.items() if isinstance(value, TensorStorageMetadata)]
    nested = {key: tuple(map(str, paths.get(key, (key,)))) for key in keys}
    if not all(key in paths for key in keys) and any(key.startswith("model.model.") for key in keys):
        nested = {key: tuple(key.split(".", 1)) for key in keys}
    if any(path[0] == "model" and len(path) > 1 for path in nested.values()):
        nested = {key: path[1:] for key, path in nested.items() if path[0] == "model" and len(path) > 1}
    found: dict[str, TensorEntry] = {}
    for key, path in nested.items():
        name = ".".join(part for part in ".".join(path).split(".") if part not in _WRAPPERS).removeprefix("module.")
        if name in found:
            raise RunError(f"the checkpoint holds {name} twice, as {found[name].key} and {key}")
        entry = metadata.state_dict_metadata[key]
        found[name] = TensorEntry(key, tuple(entry.size), entry.properties.dtype)
    if not found:
        raise RunError(
            f"the checkpoint holds no tensors of a model, only: {', '.join(metadata.state_dict_metadata)[:300]}"
        )
    return found


def _require_chunks(name: str, entry: TensorEntry, chunks: list[Any], stored: set[tuple[int, ...]]) -> None:
    """Raise RunError if a part of a tensor is in no file: DCP would return uninitialized memory for it."""
    absent = [tuple(chunk.offsets) for chunk in chunks if tuple(chunk.offsets) not in stored]
    covered = sum(math.prod(chunk.sizes) for chunk in chunks)
    if covered != math.prod(entry.shape) or absent:
        missing = f"; not in any file: the parts at {absent[:3]}" if absent else ""
        raise RunError(
            f"{name} is incomplete: the files hold {covered:,} of {math.prod(entry.shape):,} values{missing}. A rank "
            "did not save its part: save the checkpoint again"
        )
