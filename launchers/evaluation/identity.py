"""The identity of an evaluation's model, which must not change between the attempts of one evaluation.

The collection's manifest covers the rest: rows, repeats, sampling parameters and the settings of the servers.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import orjson

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_state import EvalFolder
from rollyard.launchers.evaluation.model_source import ModelSource, model_of
from rollyard.records.errors import OperatorError
from rollyard.records.json_values import differences
from rollyard.records.jsonl import replace
from rollyard.records.manifest import Manifest, encode_manifest
from rollyard.records.types import Json

ENGINE = ("dtype", "max_model_len", "tool_call_parser", "trust_remote_code", "args")
"""Settings of vLLM that change what the model answers."""
_SERVED = (
    *("implementation", "entrypoint", "model", "dtype", "max_model_len", "tool_call_parser", "extra_flags"),
    *("logprobs_mode", "return_token_id_information", "uses_reasoning_parser"),
)
"""Settings of a served model's server in the manifest that follow from those of vLLM, or are always the same."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_TRAINER_FILES = ("optimizer", "scheduler", "scaler", "rng_state", "training_args", "trainer_state")
"""Beginnings of the names of files that trainers save next to the weights, often after them."""
_SAMPLE_BYTES, _SAMPLE_EVERY = 1 << 12, 1 << 20
"""Of a file of weights, 4 KiB of each MiB are read: 0.4% of a model, and part of each tensor of a MiB or more."""


def identity_of(config: EvalConfig, source: ModelSource, here: Path) -> Json:
    """Return what identifies the model and how it is served. It contains no address and no secret."""
    identity: Json = {"model": source.name or None, "kind": source.kind, "api": source.api}
    if source.kind == "served":
        settings = config.vllm.model_dump(mode="json")
        identity["vllm"] = {name: settings[name] for name in ENGINE}
        folder = _folder(config, here)
        identity["weights"] = fingerprint(folder) if folder.is_dir() else None
    return identity


def check_weights(config: EvalConfig, identity: Json, here: Path) -> None:
    """Raise OperatorError if the folder of weights that vLLM has loaded is not the one of `identity` any more."""
    folder = _folder(config, here)
    try:
        changed = identity.get("weights") is not None and fingerprint(folder) != identity["weights"]
    except FileNotFoundError:  # deleted after it was loaded
        return
    if changed:
        raise OperatorError(
            f"{folder} was changed after the evaluation started; its rollouts would be of different weights. Evaluate "
            "the new weights in another output_dir"
        )


def check_identity(folder: EvalFolder, identity: Json) -> None:
    """Raise OperatorError if the folder contains rollouts of another model. Changes nothing."""
    try:
        before = orjson.loads(folder.identity.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise OperatorError(f"{folder.identity} cannot be read: {error}. Choose another output_dir") from error
    if not folder.rollouts.output.exists() or folder.rollouts.output.stat().st_size == 0:
        return  # nothing was collected with the other model
    if found := list(differences(before, identity)):
        listed = "\n".join(f"  {name}: {_shown(old)} in the folder, {_shown(new)} now" for name, old, new in found)
        raise OperatorError(
            f"{folder.root} belongs to an evaluation of a different model, or with other settings:\n{listed}\n"
            "Repeat the original command to continue it, or choose another output_dir"
        )


def write_identity(folder: EvalFolder, identity: Json) -> None:
    replace(folder.identity, orjson.dumps(identity, option=orjson.OPT_INDENT_2) + b"\n")


def comparable_settings(identity: Json) -> Json:
    """Return a manifest's identity without what `eval_identity.json` holds about a served model."""
    settings = dict(identity.get("settings") or {})
    if isinstance(policy := settings.get("policy_model"), dict):
        settings["policy_model"] = {key: value for key, value in policy.items() if key not in _SERVED}
    return {**identity, "settings": settings}


def update_manifest(folder: EvalFolder, settings: Json) -> None:
    """Write the settings of a served model's server into the manifest, after `check_identity` has compared the model.

    `ng_eval` once started vLLM itself, so its manifests have those of a vllm_model. `settings`: of all servers.
    """
    path = folder.rollouts.manifest
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return  # absent, or the collector explains what is wrong with it
    known = manifest.identity.get("settings") or {}
    if "policy_model" in known and known["policy_model"] != settings["policy_model"]:
        known = {**known, "policy_model": settings["policy_model"]}
        changed = manifest.model_copy(update={"identity": {**manifest.identity, "settings": known}})
        replace(path, encode_manifest(changed))


def fingerprint(folder: Path) -> str:
    """Return a hash of a checkpoint: its small files, and samples of each file of weights, also of its two ends."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        size = path.stat().st_size
        if path.name.startswith(_TRAINER_FILES) or path.suffix not in (*_WEIGHTS, ".json", ".jinja", ".model", ".txt"):
            continue
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            if path.suffix not in _WEIGHTS or size <= 2 * _SAMPLE_EVERY:
                digest.update(hashlib.file_digest(file, "sha256").digest())
                continue
            for offset in (*range(0, size, _SAMPLE_EVERY), size - _SAMPLE_BYTES):
                digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))
    return digest.hexdigest()


def _folder(config: EvalConfig, here: Path) -> Path:
    return here / Path(model_of(config)).expanduser()


def _shown(value: object) -> str:
    return "not set" if value is None else repr(value)
