"""Reads `.metadata` of a checkpoint, which is a pickle, without running code from it.

torch reads the file with the plain pickle module, which runs whatever the file names. Here only the classes that the
metadata consists of are allowed; torch reads the file afterwards.
"""

from __future__ import annotations

import io
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from rollyard.records.errors import RunError

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
