"""The checkpoint to convert, and the key of its content.

The key covers everything that determines the result: `.metadata` and each data file (name, size, SHA-256), the model's
name or the content of its local config, the tokenizer's files or name, `hf_overrides` and the version of the
converter. It contains no path and no time: a copy of a checkpoint has the same key, an overwritten one has a new key.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from rollyard.launchers.conversion.digests import Digests, FileState, require_unchanged
from rollyard.launchers.conversion.paths import resolve
from rollyard.launchers.conversion.policy_config import PolicyConfig, read_policy_config
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json

CONVERTER_VERSION = 1
"""Increased when the same input gives another result; earlier conversions are then no longer used."""
METADATA = ".metadata"
TOKENIZER_FILES = (
    *("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
    *("*.model", "*.tiktoken", "*.jinja"),
)
_CONFIG_FILES = ("config.json", "generation_config.json")
_INSIDE = ("weights", "policy/weights", "model", "weights/model", "policy/weights/model")


@dataclass(frozen=True)
class Source:
    """A checkpoint in DCP format with its config."""

    checkpoint: Path
    config: Path
    policy: PolicyConfig
    tokenizer: str
    """The folder saved with the checkpoint, or `policy.tokenizer_name`."""
    files: Mapping[str, FileState]
    """`.metadata` and the data files."""
    key: str
    """SHA-256 in hexadecimal."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(state.size for state in self.files.values())

    def require_unchanged(self) -> None:
        """Raise RunError if a file changed since its digest was taken."""
        for name, state in self.files.items():
            require_unchanged(self.checkpoint / name, state)


def read_source(checkpoint: str | Path, config: str | Path, environ: Mapping[str, str], digests: Digests) -> Source:
    """Read a checkpoint's files to compute its key. Raises OperatorError if it is not a complete DCP checkpoint."""
    folder, config_file = resolve(checkpoint, environ), resolve(config, environ)
    policy = read_policy_config(config_file)
    names = _checkpoint_files(folder)
    try:
        found = digests.of(folder, names)
        saved = folder.parent / "tokenizer"
        tokenizer = str(saved) if saved.is_dir() and any(saved.iterdir()) else policy.tokenizer_name
        content = {
            "converter": CONVERTER_VERSION,
            "checkpoint": {name: [state.size, digest] for name, (state, digest) in found.items()},
            "model": _content(policy.model_name, _CONFIG_FILES, digests),
            "tokenizer": _content(tokenizer, TOKENIZER_FILES, digests),
            "hf_overrides": policy.hf_overrides,
        }
    except OSError as error:
        raise RunError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    key = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()
    files = {name: state for name, (state, _) in found.items()}
    return Source(folder, config_file, policy, tokenizer, files, key)


def _checkpoint_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise OperatorError(
            f"--dcp-ckpt-path: {folder} is not a folder; expected a checkpoint such as …/policy/weights/"
        )
    data = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.distcp") if file.is_file())
    if (folder / METADATA).is_file():
        return [METADATA, *data]
    inside = next((name for name in _INSIDE if (folder / name / METADATA).is_file()), "")
    if inside:
        raise OperatorError(f"--dcp-ckpt-path: {folder} has no {METADATA}; did you mean {folder / inside}?")
    if any(folder.rglob("*.safetensors")):
        raise OperatorError(
            f"--dcp-ckpt-path: {folder} has no {METADATA} but safetensors files: it is already in Hugging Face format; "
            "evaluate it with --skip-conversion --hf-ckpt-path"
        )
    raise OperatorError(
        f"--dcp-ckpt-path: {folder} has no {METADATA}, which is written last: the checkpoint is still being saved, "
        "saving it was interrupted, or this is another folder"
    )


def _content(name: str, patterns: tuple[str, ...], digests: Digests) -> Json:
    """Identify a model or tokenizer: by the content of a local folder's files, else by its name on the hub."""
    folder = Path(name)
    if not folder.is_dir():
        return {"hub": name}
    files = [
        file.name
        for file in sorted(folder.iterdir())
        if file.is_file() and any(fnmatch.fnmatch(file.name, pattern) for pattern in patterns)
    ]
    return {"files": {file: digest for file, (_, digest) in digests.of(folder.resolve(), files).items()}}
