"""Decides which model a launch evaluates, and whether a checkpoint must be converted first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from rollyard.launchers.slurm.launch.launch_options import LaunchOptions
from rollyard.records.errors import OperatorError
from rollyard.records.types import Record


class CachedCheckpoint(NamedTuple):
    """Where the conversion of a checkpoint is, or will be."""

    folder: Path
    is_converted: bool


class Conversions(Protocol):
    """Knows the converted checkpoints."""

    def __call__(self, dcp: Path, config: Path, hf_path: Path | None, token: str) -> CachedCheckpoint:
        """Find the conversion of a checkpoint. `token`: only one that carries it counts; empty for any.

        Raises OperatorError if the checkpoint or config are missing, or the folder cannot be used.
        """
        ...


class Conversion(Record):
    """A conversion that runs before the evaluations."""

    dcp_ckpt_path: Path
    dcp_config: Path
    hf_ckpt_path: Path
    """Where the result will be."""
    requested_path: Path | None
    """`--hf-ckpt-path`; None: the cache. Without versions, which `hf_ckpt_path` may have: `step_170_…-2`."""
    force_token: str | None = None
    """With --force-conversion: the same text for all jobs of the launch, so that only the first converts again."""


@dataclass(frozen=True)
class ModelChoice:
    """The model that the flags choose."""

    model: Path | None = None
    """Folder of the checkpoint; None: the config, sweep or overrides choose the model."""
    conversion: Conversion | None = None
    """The necessary conversion; None if the checkpoint is converted already, or none was given."""
    cached: bool = False
    """An earlier conversion is used."""


def choose_model(options: LaunchOptions, conversions: Conversions, force_token: str) -> ModelChoice:
    """Apply the flags of the checkpoint conversion. Raises OperatorError if they contradict each other."""
    _check(options)
    target = None if options.hf_ckpt_path is None else _path(options.hf_ckpt_path)
    if options.dcp_ckpt_path is None or (options.skip_conversion and target is not None):
        if target is not None and not (target / "config.json").is_file():
            raise OperatorError(f"--hf-ckpt-path {str(target)!r} has no config.json; expected a converted checkpoint")
        return ModelChoice(target)
    if options.dcp_config is None:
        raise OperatorError("--dcp-ckpt-path requires --dcp-config, the path of the checkpoint's config.yaml")
    dcp, config = _path(options.dcp_ckpt_path), _path(options.dcp_config)
    token = force_token if options.force_conversion else ""
    found = conversions(dcp, config, target, token)
    if found.is_converted:
        return ModelChoice(found.folder, cached=True)
    if options.skip_conversion:
        raise OperatorError(f"--skip-conversion: there is no conversion of {dcp} (looked for {found.folder})")
    conversion = Conversion(
        dcp_ckpt_path=dcp,
        dcp_config=config,
        hf_ckpt_path=found.folder,
        requested_path=target,
        force_token=token or None,
    )
    return ModelChoice(found.folder, conversion)


def _check(options: LaunchOptions) -> None:
    converts = options.dcp_ckpt_path is not None
    for given, name in ((options.dcp_config, "--dcp-config"), (options.force_conversion, "--force-conversion")):
        if given and not converts:
            raise OperatorError(f"{name} has no effect without --dcp-ckpt-path")
    if options.hf_ckpt_path is not None and not converts and not options.skip_conversion:
        raise OperatorError("--hf-ckpt-path requires --dcp-ckpt-path, or --skip-conversion to evaluate it as it is")
    if options.skip_conversion and not converts and options.hf_ckpt_path is None:
        raise OperatorError("--skip-conversion requires --hf-ckpt-path, the converted checkpoint")
    if options.skip_conversion and options.force_conversion:
        raise OperatorError("--skip-conversion and --force-conversion contradict each other; use one of them")


def _path(text: str) -> Path:
    """Return the absolute path without links, so that one checkpoint has one name."""
    if not text:
        raise OperatorError("a path is empty (is a shell variable unset?)")
    return Path(text).expanduser().resolve()
