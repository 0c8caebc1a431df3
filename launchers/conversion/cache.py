"""The cache of converted checkpoints: each content is converted once, however many processes ask for it.

A conversion is written to `NAME.tmp.…` next to its target, checked, synced, given its manifest and renamed: a process
that is killed at any instant leaves either a complete conversion or a temporary folder, which the next one removes.
A published one is never renamed, changed or removed, because an engine may be loading it, one shard after another. A
forced conversion becomes the next version (NAME, NAME-2, NAME-3, ...), and the highest valid version is current.

The lock `NAME.lock` saves work, and the rename keeps results complete. It is a lease of the package filelock, because
flock between hosts depends on the file system. An owner that has ended loses it at once on its own host, elsewhere
after a period without a heartbeat.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from rollyard.launchers.conversion.source import (
    CONVERTER_VERSION,
    ConversionSource,
    Digests,
    digest_of,
    read_source,
    resolve,
)
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import sync_folder, sync_tree, write_synced
from rollyard.records.optional import load
from rollyard.records.types import Record

MANIFEST = "rollyard_conversion.json"


@dataclass(frozen=True)
class ConversionRequest:
    checkpoint: str | Path
    config: str | Path
    environ: Mapping[str, str]
    """`LOG`, `HOME` and `SLURM_JOB_ID` are used."""
    hf_path: str | Path | None = None
    """None: the cache."""
    token: str = ""
    """One for each launch with --force-conversion; a conversion that carries it is accepted, no other."""
    remember: bool = True
    """Store digests of the files in the cache folder, so that others need not read them. False for a dry run."""

    def read(self, report: Callable[[str], None] = lambda line: None) -> tuple[ConversionSource, Versions]:
        """Read the checkpoint to find its conversions. Needs no torch."""
        root = cache_root(self.environ)
        digests = Digests(root / ".digests", remember=self.remember)
        source = read_source(self.checkpoint, self.config, self.environ, digests)
        if self.hf_path is not None and not str(self.hf_path):
            raise OperatorError("--hf-ckpt-path is empty; expected a folder, or omit it")
        cached = root / "_".join(filter(None, (identifier(source.checkpoint), source.key[:16])))
        base = resolve(self.hf_path, self.environ) if self.hf_path else cached
        if base in (source.checkpoint, *source.checkpoint.parents) or source.checkpoint in base.parents:
            raise OperatorError(
                f"--hf-ckpt-path: {base} and the checkpoint {source.checkpoint} must not contain each other"
            )
        return source, Versions(base, source.key, self.token, report)


def conversion_target(request: ConversionRequest) -> Path:
    """Return the folder that holds the conversion, or will hold it. Raises OperatorError if it cannot be used."""
    _, versions = request.read()
    if found := versions.current():
        return found
    versions.require_own()
    return versions.next()


def is_converted(request: ConversionRequest) -> bool:
    return request.read()[1].current() is not None


class LockSettings(Record):
    heartbeat_s: float = 10
    expiry_s: float = 120
    """An owner on another host counts as dead after this long without a heartbeat."""
    max_wait_s: float = 7200
    poll_s: float = 1


Converter = Callable[[ConversionSource, Path, Callable[[str], None]], "Contents"]
"""Writes a checkpoint in Hugging Face format into an empty folder, and checks it. Raises RunError if it fails."""


def convert(
    request: ConversionRequest,
    converter: Converter,
    *,
    settings: LockSettings | None = None,
    report: Callable[[str], None] = print,
) -> Path:
    """Return the converted checkpoint; converts it if needed, or waits for another process that does."""
    source, versions = request.read(report)
    if found := versions.current():
        report(f"Found cached HF checkpoint at: {found}")
        report("Using cached checkpoint, skipping conversion")
        return found
    versions.require_own()
    try:
        versions.base.parent.mkdir(parents=True, exist_ok=True)
        with _locked(versions.base, settings or LockSettings(), report) as waited:
            if found := versions.current():
                how = "Conversion completed by another process"
                report(how if waited else "Another process completed conversion, using cached checkpoint")
                return found
            if waited:
                report("The other process ended without a result")
            report("Acquired lock, converting DCP to HF format...")
            found = _convert(request, source, versions, converter, report)
            report(f"Successfully converted checkpoint to: {found}")
            return found
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise RunError(f"the conversion failed: {error.strerror or error}{where}") from error


@contextmanager
def _locked(base: Path, settings: LockSettings, report: Callable[[str], None]) -> Iterator[bool]:
    filelock = load("filelock", "convert", "the conversion of DCP checkpoints")
    path = base.with_name(f"{base.name}.lock")
    durations = {"lease_duration": settings.expiry_s, "heartbeat_interval": settings.heartbeat_s}
    lock = filelock.SoftFileLease(path, poll_interval=settings.poll_s, **durations)
    deadline = time.monotonic() + settings.max_wait_s
    waited = False
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        waited = True
        report("Another process is converting, waiting for completion...")
        holder = lock.owner
        shown = f"process {holder.pid} on {holder.hostname}" if holder else "a process that has just ended"
        report(f"It is {shown}")
        try:
            lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        except filelock.Timeout:
            raise RunError(
                f"waited {settings.max_wait_s:.0f} s for a conversion by {shown}, which still runs. Look at the "
                "output of that job, or wait longer with --max-wait"
            ) from None
    try:
        yield waited
    finally:
        lock.release()


def _convert(
    request: ConversionRequest,
    source: ConversionSource,
    versions: Versions,
    converter: Converter,
    report: Callable[[str], None],
) -> Path:
    base = versions.base
    _remove_leftovers(base, report)
    free = shutil.disk_usage(base.parent).free
    if free < source.size:
        raise RunError(
            f"{base.parent} has {free:,} bytes left; the conversion needs about {source.size:,}. Free some space, "
            "or set LOG or --hf-ckpt-path to another disk"
        )
    folder = base.with_name(f"{base.name}.tmp.{uuid.uuid4().hex[:8]}")
    try:
        folder.mkdir()
        contents = converter(source, folder, report)
        source.require_unchanged()
        manifest = ConversionManifest(
            key=source.key,
            token=request.token,
            converter_version=CONVERTER_VERSION,
            checkpoint=str(source.checkpoint),
            config=str(source.config),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            pid=os.getpid(),
            job_id=request.environ.get("SLURM_JOB_ID", ""),
            files=_sync_files(folder),
            contents=contents,
        )
        write_synced(folder / MANIFEST, manifest.model_dump_json(indent=2).encode())
        target = versions.next()
        try:
            folder.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise RunError(f"{target} appeared during the conversion; repeat the command") from error
        sync_folder(target.parent)
        return target
    except OSError as error:
        if folder.is_dir():
            raise
        raise RunError(
            f"{folder} was removed by another process, because this one was paused for too long; repeat the command"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(base: Path, report: Callable[[str], None]) -> None:
    """Remove the temporary folders of earlier owners, all of which have ended or lost the lock.

    They are renamed first, so that an owner that was only paused cannot publish a folder that is being removed.
    """
    name = re.compile(re.escape(base.name) + r"\.tmp\.[0-9a-f-]+")
    for folder in [folder for folder in base.parent.iterdir() if name.fullmatch(folder.name)]:
        removed = base.with_name(f"{base.name}.tmp.{uuid.uuid4().hex[:8]}")
        with suppress(OSError):
            folder.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
            report(f"Removed {folder}, which an interrupted conversion had left")


@dataclass
class Versions:
    base: Path
    key: str
    token: str
    report: Callable[[str], None]
    _checked: dict[Path, str] = field(default_factory=dict)

    def current(self) -> Path | None:
        """Return the highest valid version; with a token, the highest that carries it."""
        for _, folder in sorted(self._folders(), reverse=True):
            manifest = read_manifest(folder)
            wanted = manifest and manifest.key == self.key and self.token in ("", manifest.token)
            if manifest and wanted and not self._damage(folder, manifest):
                return folder
        return None

    def next(self) -> Path:
        number = max((number for number, _ in self._folders()), default=0) + 1
        return self.base if number == 1 else self.base.with_name(f"{self.base.name}-{number}")

    def require_own(self) -> None:
        """Raise OperatorError if the base path holds something that this command did not write."""
        if not (self.base.exists() or self.base.is_symlink()) or _is_empty(self.base):
            return
        manifest = read_manifest(self.base)
        if manifest is None:
            raise OperatorError(
                f"{self.base} exists, but has no valid {MANIFEST}: it was not converted by this command, and will be "
                "neither used nor removed. Give another --hf-ckpt-path, or evaluate it as it is with --skip-conversion"
            )
        if manifest.key != self.key and not self.token:
            raise OperatorError(
                f"{self.base} holds a conversion of another checkpoint or config ({manifest.checkpoint}, converted "
                f"{manifest.created}). Give another --hf-ckpt-path; --force-conversion writes {self.next()}"
            )

    def _damage(self, folder: Path, manifest: ConversionManifest) -> str:
        found = damage(folder, manifest)
        if found and self._checked.get(folder) != found:
            self.report(f"{folder} is damaged and not used: {found}")
        self._checked[folder] = found
        return found

    def _folders(self) -> Iterator[tuple[int, Path]]:
        name = re.compile(re.escape(self.base.name) + r"(?:-([2-9]|[1-9][0-9]+))?")
        if self.base.parent.is_dir():
            for folder in self.base.parent.iterdir():
                if (found := name.fullmatch(folder.name)) and not _is_empty(folder):
                    yield int(found[1] or 1), folder


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


class ConvertedFile(Record):
    size: int
    sha256: str


class Contents(Record):
    tensors: int = 0
    parameters: int = 0
    dtypes: dict[str, int] = Field(default_factory=dict)
    tied: dict[str, str] = Field(default_factory=dict)
    """Tensors that are not stored because they share the weights of another."""
    left_out: list[str] = Field(default_factory=list)
    """Buffers of the checkpoint that the model computes itself."""
    largest_logit_difference: float = 0.0
    """Between the checkpoint's weights and the files, on a fixed prompt."""


class ConversionManifest(Record):
    key: str
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


def read_manifest(folder: Path) -> ConversionManifest | None:
    """Return a folder's manifest; None if it has none, or one that cannot be read."""
    try:
        return ConversionManifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError):
        return None


def _sync_files(folder: Path) -> dict[str, ConvertedFile]:
    sync_tree(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(file.relative_to(folder)): ConvertedFile(size=file.stat().st_size, sha256=digest_of(file)) for file in files
    }


def damage(folder: Path, manifest: ConversionManifest) -> str:
    """Return what is wrong with the files of a conversion; "" if nothing."""
    for name, recorded in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != recorded.size:
            return f"{name} has {size:,} bytes; expected {recorded.size:,}"
    return ""


def cache_root(environ: Mapping[str, str]) -> Path:
    return resolve(environ.get("LOG") or "/tmp", environ) / "nemo-rl" / "hf_eval_checkpoints"


_GENERIC = ("weights", "policy", "actor")
_MAX_IDENTIFIER = 64


def identifier(checkpoint: Path) -> str:
    """Return the readable part of the folder's name: `step_170` for `results/grpo/step_170/policy/weights`."""
    named = [part for part in checkpoint.parts if part != checkpoint.anchor and part not in _GENERIC]
    return re.sub(r"[^A-Za-z0-9_-]+", "_", named[-1]).strip("_-")[:_MAX_IDENTIFIER] if named else ""
