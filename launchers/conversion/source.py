"""The checkpoint to convert, and the key of its content.

The key covers everything that determines the result: `.metadata` and each data file (name, size, SHA-256), the model's
name or the content of its local config, the tokenizer's files or name, `hf_overrides` and the version of the
converter. It contains no path and no time: a copy of a checkpoint has the same key, an overwritten one has a new key.

A checkpoint has tens to hundreds of gigabytes. Several files are read at a time, and the digests are stored per folder
with each file's size, inode, and times of modification and change, so that 24 jobs of a sweep read the files once.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import TypeAdapter

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json, Record

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
class ConversionSource:
    checkpoint: Path
    config: Path
    policy: PolicyConfig
    tokenizer: str
    """The folder saved with the checkpoint, or `policy.tokenizer_name`."""
    files: Mapping[str, FileState]
    key: str

    @property
    def size(self) -> int:
        return sum(state.size for state in self.files.values())

    def require_unchanged(self) -> None:
        for name, state in self.files.items():
            require_unchanged(self.checkpoint / name, state)


def read_source(
    checkpoint: str | Path, config: str | Path, environ: Mapping[str, str], digests: Digests
) -> ConversionSource:
    """Read a checkpoint's files to compute its key. Raises OperatorError if it is not a complete DCP checkpoint."""
    folder, config_file = resolve(checkpoint, environ), resolve(config, environ)
    policy = _read_policy_config(config_file)
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
    return ConversionSource(folder, config_file, policy, tokenizer, files, key)


def resolve(path: str | Path, environ: Mapping[str, str]) -> Path:
    """Return the absolute path without symbolic links, `~`, `..` or a trailing slash. It need not exist."""
    text = str(path)
    home = environ.get("HOME", "")
    if home and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    return Path(os.path.realpath(Path(text).expanduser()))


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


class PolicyConfig(Record):
    model_name: str
    tokenizer_name: str
    """As `model_name`; used if no tokenizer was saved with the checkpoint."""
    hf_overrides: dict[str, Any]
    precision: str
    """The precision of training; empty if not set. The weights keep the precision of the checkpoint."""


def _read_policy_config(file: Path) -> PolicyConfig:
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OperatorError(f"--dcp-config: cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OperatorError(f"--dcp-config: {file} is not valid YAML: {' '.join(str(error).split())}") from error
    policy = loaded.get("policy") if isinstance(loaded, dict) else None
    if not isinstance(policy, dict):
        raise OperatorError(f"--dcp-config: {file} has no section 'policy'; give the config.yaml of the checkpoint")
    name = policy.get("model_name")
    if not isinstance(name, str) or not name:
        raise OperatorError(f"--dcp-config: policy.model_name of {file} is {name!r}; expected a model's name or folder")
    tokenizer = policy.get("tokenizer")
    tokenizer_name = tokenizer.get("name") if isinstance(tokenizer, dict) else None
    # NeMo-RL calls them hf_config_overrides since 0.4.
    overrides = policy.get("hf_config_overrides") or policy.get("hf_overrides") or {}
    if not isinstance(overrides, dict):
        raise OperatorError(f"--dcp-config: policy.hf_overrides of {file} is {overrides!r}; expected a mapping")
    return PolicyConfig(
        model_name=name,
        tokenizer_name=tokenizer_name if isinstance(tokenizer_name, str) and tokenizer_name else name,
        hf_overrides={str(key): value for key, value in overrides.items()},
        precision=str(policy.get("precision") or ""),
    )


_RECENT_S = 2.0
"""A file that changed this recently may change again within the resolution of its times: its digest is not stored."""


class FileState(Record):
    """What changes when a file changes."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int


class _Known(Record):
    state: FileState
    digest: str


_KNOWN = TypeAdapter(dict[str, _Known])
_THREADS = 8


def _file_state(file: Path) -> FileState:
    stat = file.stat()
    return FileState(size=stat.st_size, inode=stat.st_ino, modified_ns=stat.st_mtime_ns, changed_ns=stat.st_ctime_ns)


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@dataclass(frozen=True)
class Digests:
    store: Path
    remember: bool = True
    clock: Callable[[], float] = time.time

    def of(self, folder: Path, names: Iterable[str]) -> dict[str, tuple[FileState, str]]:
        """Return state and digest of each file. Raises RunError if one changes while it is read."""
        known = self._load(folder)
        states = {name: _file_state(folder / name) for name in names}
        unknown = [name for name in states if name not in known or known[name].state != states[name]]
        with ThreadPoolExecutor(max(1, min(_THREADS, os.cpu_count() or 1))) as pool:
            digests = dict(zip(unknown, pool.map(lambda name: digest_of(folder / name), unknown), strict=True))
        found = {name: (state, digests.get(name) or known[name].digest) for name, state in states.items()}
        for name in unknown:
            require_unchanged(folder / name, states[name])
        if unknown and self.remember:
            self._save(folder, found)
        return found

    def _file(self, folder: Path) -> Path:
        return self.store / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"

    def _load(self, folder: Path) -> dict[str, _Known]:
        with suppress(OSError, ValueError):  # absent, or damaged: read the files again
            return _KNOWN.validate_json(self._file(folder).read_bytes())
        return {}

    def _save(self, folder: Path, found: dict[str, tuple[FileState, str]]) -> None:
        latest = (self.clock() - _RECENT_S) * 1e9
        stored = {
            name: _Known(state=state, digest=digest).model_dump()
            for name, (state, digest) in found.items()
            if max(state.modified_ns, state.changed_ns) < latest
        }
        if not stored:
            return
        file = self._file(folder)
        temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
        with suppress(OSError):  # without the store, the files are read again
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(orjson.dumps(stored))
                temporary.rename(file)
            finally:
                temporary.unlink(missing_ok=True)


def require_unchanged(file: Path, state: FileState) -> None:
    """Raise RunError if the file has changed since its state was recorded."""
    try:
        changed = _file_state(file) != state
    except FileNotFoundError:
        raise RunError(
            f"{file} was removed while it was being read: keep the checkpoint until it is converted"
        ) from None
    if changed:
        raise RunError(f"{file} changed while it was being read: wait until the checkpoint is saved completely")
