"""Checks a folder of weights before any engine loads it: it must be complete and belong to this model.

The check is necessary because an engine whose load fails loses its weights and must be restarted (weight_loader.py),
and because vLLM 0.32 returns 200 if tensors are missing and keeps the old ones.

    safetensors_headers.py     the files are complete and consistent
    adapters.py                it is an adapter for this model
    model_signature.py         it is the same model: configuration, tensors, vocabulary
    finite_weights.py          every weight is a finite number
    checkpoint_fingerprint.py  identifies the files, so that a later load uses the same ones or fails
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollyard.records.errors import Failure
from rollyard.responses_api_models.chat_engine.weights.adapters import compare_adapter
from rollyard.responses_api_models.chat_engine.weights.checkpoint_fingerprint import fingerprint
from rollyard.responses_api_models.chat_engine.weights.finite_weights import check_finite
from rollyard.responses_api_models.chat_engine.weights.model_signature import ModelSignature, compare, model_signature
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.responses_api_models.chat_engine.weights.safetensors_headers import Tensor, read_tensors

Depth = Literal["values", "headers", "off"]
HINT_OFF = "if only the engines' hosts can read it, set weights_check: off"


@dataclass(frozen=True)
class Checkpoint:
    """The folder of a version's weights and the fingerprint of its files, which is empty if they were not checked."""

    folder: str
    fingerprint: str = ""
    signature: ModelSignature | None = None
    warnings: tuple[str, ...] = ()
    is_adapter: bool = False
    """Whether the folder contains a LoRA adapter for the weights that the engines were started with (adapters.py)."""


def check(folder: str, engine: ModelSignature | None, depth: Depth = "values") -> Checkpoint:
    """Check the checkpoint in `folder` for engines that were started with the model `engine`.

    Links are resolved once, so every engine loads the same folder. Raises Failure bad_request if the checkpoint is
    invalid.
    """
    if depth == "off":
        return _unchecked(folder)
    with _unchanged(folder) as (resolved, before, tensors):
        signature = model_signature(resolved, tensors)
        warnings = compare(folder, signature, engine)
        if depth == "values":
            check_finite(tensors.values())
    return Checkpoint(str(resolved), before, signature, tuple(warnings))


def check_adapter(folder: str, engine: ModelSignature | None, depth: Depth = "values") -> Checkpoint:
    """Check the LoRA adapter in `folder` in the same way."""
    if depth == "off":
        return dataclasses.replace(_unchecked(folder), is_adapter=True)
    with _unchanged(folder) as (resolved, before, tensors):
        compare_adapter(resolved, tensors, engine)
        if depth == "values":
            check_finite(tensors.values())
    return Checkpoint(str(resolved), before, is_adapter=True)


def start_checkpoint(folder: str) -> Checkpoint | None:
    """Return the checkpoint that an engine was started with; None if it is not a local folder (e.g. a hub name)."""
    path = Path(folder)
    with contextlib.suppress(Failure), _readable(folder):
        if path.is_dir():
            return Checkpoint(str(path.resolve()), fingerprint(path), model_signature(path, read_tensors(path)))
    return None


def difference(checkpoint: Checkpoint) -> str:
    """Return a description of how the folder has changed since it was checked; empty if it has not changed."""
    if not checkpoint.fingerprint:
        return ""
    try:
        with _readable(checkpoint.folder):
            found = fingerprint(_resolved(Path(checkpoint.folder)))
    except Failure as error:
        return f"{checkpoint.folder} can no longer be read ({error})"
    if found == checkpoint.fingerprint:
        return ""
    return f"{checkpoint.folder} has changed: its fingerprint was {checkpoint.fingerprint} and is now {found}"


def _unchecked(folder: str) -> Checkpoint:
    _absolute(folder)
    return Checkpoint(folder, warnings=("weights_check is off: nothing was checked or fingerprinted",))


@contextlib.contextmanager
def _unchanged(folder: str) -> Iterator[tuple[Path, str, dict[str, Tensor]]]:
    """Yield the resolved folder, its fingerprint and its tensors. Raises Failure if it changes during the block."""
    path = _absolute(folder)
    with _readable(folder):
        resolved = _resolved(path)
        before = fingerprint(resolved)
        tensors = read_tensors(resolved)
        if not tensors:
            raise bad_request(f"{folder} contains no *.safetensors; save with safe_serialization=True ({HINT_OFF})")
        yield resolved, before, tensors
        if fingerprint(resolved) != before:
            raise bad_request(
                f"{folder} changed while it was being checked; it may still be incomplete. Send it once it is complete"
            )


def _absolute(folder: str) -> Path:
    if not (path := Path(folder)).is_absolute():
        raise bad_request(f"path: found {folder[:200]!r}; expected an absolute path to a folder, as the engines see it")
    return path


def _resolved(path: Path) -> Path:
    resolved = path.resolve(strict=True)
    if not resolved.is_dir():
        raise bad_request(f"path: {path} is a file; expected the folder that contains it")
    return resolved


@contextlib.contextmanager
def _readable(folder: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise bad_request(f"path: there is no folder {folder[:500]!r} on this server's host ({HINT_OFF})") from None
    except (OSError, ValueError, RuntimeError) as error:  # e.g. no permission, a cycle of links, a null byte
        raise bad_request(f"path: {folder[:500]!r} cannot be read ({error})") from error
