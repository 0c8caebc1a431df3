"""The manifest of a converted checkpoint. It is written last; a folder without it is not a conversion.

A conversion is valid if it has a manifest and each file that the manifest lists has the recorded size.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, ValidationError

from rollyard.launchers.conversion.digests import digest_of
from rollyard.records.io.locked_files import sync_folder, write_synced
from rollyard.records.types import Record

MANIFEST = "rollyard_conversion.json"


class ConvertedFile(Record):
    """A file of a conversion."""

    size: int
    sha256: str


class Contents(Record):
    """What the converter found and wrote."""

    tensors: int = 0
    parameters: int = 0
    dtypes: dict[str, int] = Field(default_factory=dict)
    """Number of tensors by data type."""
    tied: dict[str, str] = Field(default_factory=dict)
    """Tensors that are not stored because they share the weights of another."""
    left_out: list[str] = Field(default_factory=list)
    """Buffers of the checkpoint that the model computes itself."""
    largest_logit_difference: float = 0.0
    """Between the checkpoint's weights and the files, on a fixed prompt."""


class Manifest(Record):
    """Origin and files of a conversion."""

    key: str
    """The source's key."""
    token: str = ""
    """Set by a forced conversion; see `--force-token`."""
    converter_version: int
    checkpoint: str
    config: str
    created: str
    host: str
    pid: int
    job_id: str = ""
    files: dict[str, ConvertedFile]
    contents: Contents = Contents()


def read_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest; None if it has none, or one that cannot be read."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError):
        return None


def sync_files(folder: Path) -> dict[str, ConvertedFile]:
    """Sync every file of a folder to the disk and return their sizes and digests."""
    files = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        files[str(file.relative_to(folder))] = ConvertedFile(size=file.stat().st_size, sha256=digest_of(file))
    for subfolder in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync_folder(subfolder)
    return files


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a complete conversion."""
    write_synced(folder / MANIFEST, manifest.model_dump_json(indent=2).encode())


def damage(folder: Path, manifest: Manifest, *, verify: bool = False) -> str:
    """Return what is wrong with the files of a conversion; "" if nothing. `verify`: compare their content, too."""
    for name, recorded in manifest.files.items():
        file = folder / name
        try:
            size = file.stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != recorded.size:
            return f"{name} has {size:,} bytes; expected {recorded.size:,}"
        if verify and digest_of(file) != recorded.sha256:
            return f"the content of {name} has changed"
    return ""
