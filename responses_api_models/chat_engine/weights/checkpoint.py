"""Checkpoint: a folder of weights, seen to be whole and this model's before any engine is asked to load it.

It must be seen here: an engine whose load fails has lost its weights and must be started again (loader.py), and where
tensors are merely missing vLLM 0.32 answers 200 and goes on with the old ones in their place.

    tensors.py      the files are whole and hold what they say
    profile.py      it is the same model: configuration, tensors, vocabulary
    finite.py       every weight is a finite number
    fingerprint.py  which files they were, so that a later load takes the same ones or none
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollyard.responses_api_models.chat_engine.weights.checkpoint_fingerprint import fingerprint
from rollyard.responses_api_models.chat_engine.weights.finite_weights import check_finite
from rollyard.responses_api_models.chat_engine.weights.model_signature import ModelSignature, compare, model_signature
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.responses_api_models.chat_engine.weights.safetensors_headers import read_tensors
from rollyard.services.errors import Failure

Depth = Literal["values", "headers", "off"]
UNSEEN = "if only the engines' machines see it, set weights_check: off"


@dataclass(frozen=True)
class Checkpoint:
    """Where a version's weights are, and which files they were; an empty fingerprint where they were not looked at."""

    folder: str
    fingerprint: str = ""
    profile: ModelSignature | None = None
    warnings: tuple[str, ...] = ()


def check(folder: str, engine: ModelSignature | None, depth: Depth = "values") -> Checkpoint:
    """The checkpoint in `folder`, for engines that were started with the model of `engine`.

    Links are followed once, so that every engine loads from the same folder, now and later. Raises Failure bad_request.
    """
    path = Path(folder)
    if not path.is_absolute():
        raise bad_request(f"path: found {folder[:200]!r}; expected an absolute path to a folder, as the engines see it")
    if depth == "off":
        return Checkpoint(folder, warnings=("weights_check is off: nothing was checked or fingerprinted",))
    with _readable(folder):
        real = _resolved(path)
        before = fingerprint(real)
        tensors = read_tensors(real)
        if not tensors:
            raise bad_request(f"{folder} holds no *.safetensors; save with safe_serialization=True ({UNSEEN})")
        profile = model_signature(real, tensors)
        warnings = compare(folder, profile, engine)
        if depth == "values":
            check_finite(tensors.values())
        if fingerprint(real) != before:
            raise bad_request(
                f"{folder} changed while it was checked: is it still being written? Send it once it is whole"
            )
    return Checkpoint(str(real), before, profile, tuple(warnings))


def start_checkpoint(folder: str) -> Checkpoint | None:
    """What an engine was started with, where its folder can be read here; hub names and the like cannot."""
    path = Path(folder)
    with contextlib.suppress(Failure), _readable(folder):
        if path.is_dir():
            return Checkpoint(str(path.resolve()), fingerprint(path), model_signature(path, read_tensors(path)))
    return None


def difference(checkpoint: Checkpoint) -> str:
    """How the folder differs from what it was when it was checked; empty where it does not."""
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


def _resolved(path: Path) -> Path:
    real = path.resolve(strict=True)
    if not real.is_dir():
        raise bad_request(f"path: {path} is a file; expected the folder that it is in")
    return real


@contextlib.contextmanager
def _readable(folder: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise bad_request(f"path: there is no folder {folder[:500]!r} on this server's machine ({UNSEEN})") from None
    except (OSError, ValueError, RuntimeError) as error:  # no permission, a loop of links, a null byte
        raise bad_request(f"path: {folder[:500]!r} cannot be read ({error})") from error
