"""A checkpoint of torch.distributed.checkpoint: names, shapes and values of its tensors, from any number of ranks.

NeMo-RL stores `{"model": model.state_dict()}`; a plain state dict works, too. Values are read in groups, each tensor
assembled from the chunks of all ranks, in one process. `.metadata` is a pickle, which is read without running code from
it, and the checksums, which torch writes but does not verify, are verified.
"""

from __future__ import annotations

import errno
import io
import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rollyard.launchers.conversion.source import METADATA
from rollyard.records.errors import RollyardError, RunError

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class TensorEntry:
    key: str
    """Its name in the files."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
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
        return _verify_checksums(self._folder, self._chunks)

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
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


_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset"},
}


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11.0 to 3.11.3 stores the member of an enum
            return _member_of
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _CLASSES.get(module, ()):
            return super().find_class("pathlib" if module == "pathlib._local" else module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of a checkpoint's metadata")


def _member_of(owner: Any, name: str) -> Enum:
    if isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__:
        return owner[name]
    raise pickle.UnpicklingError(f"it names the attribute {name} of {owner}, which metadata does not contain")


def read_metadata(file: Path) -> Any:
    """Return the `Metadata` of a checkpoint. Raises RunError if the file is damaged or names anything else."""
    content = file.read_bytes()
    try:
        metadata = _MetadataUnpickler(io.BytesIO(content)).load()
        if not (isinstance(metadata.state_dict_metadata, dict) and isinstance(metadata.storage_data, dict)):
            raise TypeError("it does not describe tensors in files")
    except Exception as error:  # a damaged pickle can raise anything
        raise RunError(f"{file} cannot be read: {error}; the checkpoint is damaged or not a DCP checkpoint") from error
    return metadata


_THREADS = 8
_BLOCK = 1 << 20


def _verify_checksums(folder: Path, chunks: Mapping[str, Sequence[tuple[int, int, str]]]) -> bool:
    """Raise RunError if a chunk differs from its checksum. Returns False if there are no checksums.

    `chunks`: offset, length and tensor of each chunk, by file.
    """
    with ThreadPoolExecutor(max(1, min(_THREADS, os.cpu_count() or 1))) as pool:
        results = list(pool.map(lambda name: _verify_file(folder / name, chunks[name]), chunks))
    wrong = [damaged for damaged, _ in results]
    verified = sum(count for _, count in results)
    if not any(wrong):
        return verified > 0
    if sum(map(len, wrong)) == verified:
        return False
    file, damaged = next((name, found) for name, found in zip(chunks, wrong, strict=True) if found)
    count = sum(map(len, wrong))
    others = f" and {count - 1} other chunks" if count > 1 else ""
    raise RunError(
        f"{folder / file} is damaged: a checksum of {damaged[0]}{others} is wrong; copy or save the checkpoint again"
    )


def _verify_file(file: Path, chunks: Sequence[tuple[int, int, str]]) -> tuple[list[str], int]:
    """Return the tensors with a wrong checksum, and the number of chunks that have one."""
    damaged, count = [], 0
    with file.open("rb") as opened:
        for offset, length, name in chunks:
            opened.seek(offset)
            if opened.read(2) != b"PK":  # another serialization format
                continue
            count += 1
            try:
                with zipfile.ZipFile(_Part(opened, offset, length)) as archive:
                    if archive.testzip():
                        damaged.append(name)
            except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError):
                damaged.append(name)
    return damaged, count


class _Part(io.RawIOBase):
    def __init__(self, file: io.BufferedReader, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), max(0, self._length - self._position), _BLOCK)
        self._file.seek(self._offset + self._position)
        data = self._file.read(size)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


_LONGEST = 600


@contextmanager
def stage(doing: str, hint: str = "") -> Iterator[None]:
    """Raise RunError for an error inside. A full disk remains an OSError: it says nothing about the checkpoint."""
    try:
        yield
    except (RollyardError, MemoryError):
        raise
    except Exception as error:
        if full := _full_disk(error):
            raise full from error
        reason = " ".join(str(error).split())
        if len(reason) > _LONGEST:
            reason = f"{reason[:_LONGEST]}…"
        advice = f". {hint}" if hint else ""
        raise RunError(f"{doing} failed: {type(error).__name__}: {reason}{advice}") from error


def _full_disk(error: BaseException | None) -> OSError | None:
    """Return the error of a full disk behind an error of a library, some of which only quote it."""
    text = str(error)
    for number in (errno.ENOSPC, errno.EDQUOT):
        reason = OSError(number, "").strerror or {errno.ENOSPC: "No space left on device"}.get(
            number, "Disk quota exceeded"
        )
        if isinstance(error, OSError) and error.errno == number:
            return OSError(number, reason, error.filename or "")
        if f"{reason} (os error {number})" in text:
            return OSError(number, reason)
    return None
