"""Requests for a converted checkpoint: where it is or will be, and how to obtain it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollyard.launchers.conversion.cached_conversion import CachedConversion, Converter
from rollyard.launchers.conversion.digests import Digests
from rollyard.launchers.conversion.lock import LockSettings
from rollyard.launchers.conversion.owner import this_process
from rollyard.launchers.conversion.paths import cache_root, cached_path, resolve
from rollyard.launchers.conversion.source import Source, read_source
from rollyard.launchers.conversion.versions import Versions
from rollyard.records.errors import OperatorError


@dataclass(frozen=True)
class ConversionRequest:
    """A checkpoint and where its conversion should be."""

    checkpoint: str | Path
    config: str | Path
    environ: Mapping[str, str]
    """`LOG`, `HOME` and `SLURM_JOB_ID` are used."""
    hf_path: str | Path | None = None
    """None: the cache."""
    token: str = ""
    """One for each launch with --force-conversion; a conversion that carries it is accepted, no other."""
    verify: bool = False
    """Compare the content of an existing conversion with its manifest, not only the sizes."""
    remember: bool = True
    """Store digests of the files in the cache folder, so that others need not read them. False for a dry run."""

    def read(self, report: Callable[[str], None] = lambda line: None) -> tuple[Source, Versions]:
        """Read the checkpoint to find its conversions. Needs no torch."""
        root = cache_root(self.environ)
        digests = Digests(root / ".digests", remember=self.remember)
        source = read_source(self.checkpoint, self.config, self.environ, digests)
        if self.hf_path is not None and not str(self.hf_path):
            raise OperatorError("--hf-ckpt-path is empty; expected a folder, or omit it")
        base = resolve(self.hf_path, self.environ) if self.hf_path else cached_path(root, source.checkpoint, source.key)
        if base in (source.checkpoint, *source.checkpoint.parents) or source.checkpoint in base.parents:
            raise OperatorError(
                f"--hf-ckpt-path: {base} and the checkpoint {source.checkpoint} must not contain each other"
            )
        return source, Versions(base, source.key, token=self.token, verify=self.verify, report=report)


def conversion_target(request: ConversionRequest) -> Path:
    """Return the folder that holds the conversion, or will hold it. Raises OperatorError if it cannot be used."""
    _, versions = request.read()
    if found := versions.current():
        return found
    versions.require_own()
    return versions.next()


def is_converted(request: ConversionRequest) -> bool:
    """Return whether a valid conversion exists."""
    return request.read()[1].current() is not None


def convert(
    request: ConversionRequest,
    converter: Converter,
    *,
    settings: LockSettings | None = None,
    report: Callable[[str], None] = print,
) -> Path:
    """Return the converted checkpoint; converts it if needed, or waits for another process that does."""
    source, versions = request.read(report)
    owner = this_process(request.environ)
    settings = settings or LockSettings()
    return CachedConversion(source, versions, request.token, owner, settings, converter, report).obtain()
