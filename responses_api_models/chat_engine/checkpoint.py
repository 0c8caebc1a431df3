"""Checks a folder of weights before any engine loads it: it must be complete and belong to this model.

The check is necessary because an engine whose load fails loses its weights and must be restarted (weight_update.py),
and because vLLM 0.32 returns 200 if tensors are missing and keeps the old ones. In this order: the files are complete
and consistent; it is an adapter for this model, or the same model (configuration, tensors,
vocabulary); every weight is a finite number. A fingerprint identifies the files, so that a later load uses the same
ones or fails.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import orjson

from rollyard.records import safetensors_headers
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.safetensors_headers import Tensor
from rollyard.records.types import Json, items, mapping

Depth = Literal["values", "headers", "off"]
HINT_OFF = "if only the engines' hosts can read it, set weights_check: off"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folder of a version's weights and the fingerprint of its files, which is empty if they were not checked."""

    folder: str
    fingerprint: str = ""
    signature: ModelSignature | None = None
    warnings: tuple[str, ...] = ()
    is_adapter: bool = False
    """Whether the folder contains a LoRA adapter for the weights that the engines were started with."""


def check(
    folder: str, engine: ModelSignature | None, depth: Depth = "values", *, is_adapter: bool = False
) -> Checkpoint:
    """Check the checkpoint, or the LoRA adapter, in `folder` for engines that were started with the model `engine`.

    Links are resolved once, so every engine loads the same folder. Raises Failure bad_request if the checkpoint is
    invalid, or if it changes during the check.
    """
    path = Path(folder)
    if not path.is_absolute():
        found = f"path: found {folder[:200]!r}"
        raise bad_request(f"{found}; expected an absolute path to a folder, as the engines see it")
    if depth == "off":
        unchecked = ("weights_check is off: nothing was checked or fingerprinted",)
        return Checkpoint(folder, warnings=unchecked, is_adapter=is_adapter)
    with _readable(folder):
        resolved = _resolved(path)
        before = fingerprint(resolved)
        tensors = read_tensors(resolved)
        if not tensors:
            raise bad_request(f"{folder} contains no *.safetensors; save with safe_serialization=True ({HINT_OFF})")
        signature, warnings = None, list[str]()
        if is_adapter:
            compare_adapter(resolved, tensors, engine)
        else:
            signature = model_signature(resolved, tensors)
            warnings = compare(folder, signature, engine)
        if depth == "values":
            check_finite(tensors.values())
        if fingerprint(resolved) != before:
            raise bad_request(
                f"{folder} changed while it was being checked; it may still be incomplete. Send it once it is complete"
            )
    return Checkpoint(str(resolved), before, signature, tuple(warnings), is_adapter)


def start_checkpoint(folder: str) -> Checkpoint | None:
    """Return the checkpoint that an engine was started with; None if it is not a local folder (e.g. a hub name)."""
    path = Path(folder)
    with contextlib.suppress(Failure), _readable(folder):
        if path.is_dir():
            return Checkpoint(str(path.resolve()), fingerprint(path), model_signature(path, read_tensors(path)))
    return None


def difference(checkpoint: Checkpoint) -> str:
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


CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_NAME = "adapter:"


def adapter_name(version: str) -> str:
    """Return the model name of a version that is an adapter.

    An engine loads each version under a name of its own, which its responses report. vLLM's `load_inplace` is not used:
    a request that was admitted with it makes vLLM (0.32) read its own version's folder again at every step, so that
    requests of two versions would replace each other's weights.
    """
    return f"{_NAME}{version}"


def version_of(name: str) -> str | None:
    return name.removeprefix(_NAME) if name.startswith(_NAME) else None


def compare_adapter(folder: Path, tensors: Mapping[str, Tensor], engine: ModelSignature | None) -> None:
    """Raises Failure bad_request if a folder is not a LoRA adapter of the model `engine` (None if unknown)."""
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise bad_request(f"{folder / CONFIG}: peft_type is {config.get('peft_type')!r}; expected 'LORA'")
    for name, tensor in tensors.items():
        module, _, part = name.removesuffix(".weight").removeprefix(_PREFIX).rpartition(".lora_")
        if part not in ("A", "B"):
            raise bad_request(
                f"{folder} contains {name}, which vLLM does not load: train lora_A and lora_B of linear modules only, "
                "or publish merged weights"
            )
        if engine is None or not engine.shapes:
            continue
        if (shape := engine.shapes.get(f"{module}.weight")) is None:
            raise bad_request(f"{folder} is for a different model: the engines' model has no {module}")
        if tensor.shape[part == "A"] != shape[part == "A"]:
            raise bad_request(
                f"{folder} is for a different model: {name} is {list(tensor.shape)}, but {module} is {list(shape)}"
            )


HEAD = "lm_head.weight"
EMBEDDINGS = "embed_tokens.weight"
PIECE = 8 * 1024 * 1024
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
"""Tensor types that an engine converts to its own type when it loads weights."""
_COMPUTED = "rotary_emb.inv_freq"
"""A tensor that some trainers save although engines compute it."""


@dataclass(frozen=True)
class ModelSignature:
    config: Json
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    has_own_head: bool
    """Whether the weights of the output head differ from those of the embeddings."""
    vocabulary: str
    """A hash of the mapping from tokens to ids; empty if the folder has no tokenizer.json."""

    @property
    def is_tied(self) -> bool:
        """Whether an engine that was started with this model uses the embeddings as the output head.

        transformers always writes tie_word_embeddings if it is false; vLLM unties a model whose head differs.
        """
        inner = self.config.get("text_config")
        default = inner.get("tie_word_embeddings") if isinstance(inner, dict) else None
        return self.config.get("tie_word_embeddings", default) is not False and not self.has_own_head


def model_signature(folder: Path, tensors: Mapping[str, Tensor]) -> ModelSignature:
    return ModelSignature(
        config=read_json(folder / "config.json"),
        shapes={name: tensor.shape for name, tensor in tensors.items()},
        dtypes={name: tensor.dtype for name, tensor in tensors.items()},
        has_own_head=_has_own_head(tensors),
        vocabulary=_vocabulary(folder / "tokenizer.json"),
    )


def compare(folder: str, new: ModelSignature, engine: ModelSignature | None) -> list[str]:
    """Compare the checkpoint in `folder` with the model `engine` that the engines were started with (None if unknown)
    and return warnings. Raises Failure bad_request if the checkpoint belongs to a different model or is incomplete.

    An engine keeps the configuration and the tokenizer that it was started with. Loading a checkpoint of a different
    model either fails, which destroys the weights, or succeeds with wrong results.
    """
    named = new.config.get("architectures")
    is_causal = isinstance(named, list) and any(str(name).endswith("ForCausalLM") for name in named)
    has_embeddings = any(name.endswith(EMBEDDINGS) for name in new.shapes)
    if is_causal and has_embeddings and not new.is_tied and not any(name.endswith(HEAD) for name in new.shapes):
        # vLLM returns 200 and keeps the old head.
        raise bad_request(f"{folder} is incomplete: it lacks {HEAD}, but tie_word_embeddings is false")
    if engine is None:
        return ["the checkpoint was not compared with the engines' model, which cannot be read on this host"]
    for name, new_value, engine_value in config_changes(new.config, engine.config):
        found = f"{name} is {new_value!r:.80} in config.json, but the engines' is {engine_value!r:.80}"
        raise bad_request(f"{folder} is a different model: {found}")
    if new.vocabulary and engine.vocabulary and new.vocabulary != engine.vocabulary:
        raise bad_request(
            f"{folder} is a different model: its tokenizer.json and the engines' map tokens to different ids"
        )
    if not engine.shapes:
        return ["the engines' own folder has no *.safetensors, so the tensors were not compared"]
    shapes, known = new.shapes, engine.shapes
    different = f"{folder} is a different model"
    if other := [name for name, shape in known.items() if shapes.get(name, shape) != shape]:
        raise bad_request(
            f"{different}: {_some(f'{name} is {list(shapes[name])} instead of {list(known[name])}' for name in other)}"
        )
    if missing := [name for name in known if name not in shapes and not _is_optional(name, engine)]:
        raise bad_request(f"{folder} is incomplete: it lacks {_some(missing)}, which the engines' model has")
    if extra := [name for name in shapes if name not in known and not _is_optional(name, engine)]:
        raise bad_request(f"{different}: it has {_some(extra)}, which the engines' model does not have")
    if new.has_own_head and engine.is_tied:
        raise bad_request(f"{different}: it has its own {HEAD}, but the engines use their embeddings as the head")
    types = engine.dtypes
    changed = [(name, dtype, types[name]) for name, dtype in new.dtypes.items() if types.get(name, dtype) != dtype]
    if wrong := [f"{name} is {now} instead of {then}" for name, now, then in changed if not {now, then} <= FLOATS]:
        raise bad_request(f"{folder} has tensors of a different type: {_some(wrong)}")
    if not changed:
        return []
    name, now, then = changed[0]
    return [f"{len(changed)} tensors are {now}, but {then} in the engines' folder ({name}); engines convert them"]


def check_announced(request: Json, engine: ModelSignature | None) -> None:
    """Check the tensors that a trainer announces before a transfer (`update_info` of vLLM's NCCL transfer).

    Raises Failure bad_request if a shape differs from the engines' model. Unknown names pass, because a trainer may
    send parts that the engine has fused.
    """
    info = mapping(request.get("update_info"))
    for name, shape in zip(items(info.get("names")), items(info.get("shapes")), strict=False) if engine else ():
        known = engine.shapes.get(name) if engine and isinstance(name, str) else None
        if known is not None and list(known) != shape:
            raise bad_request(
                f"update_info: {name} has the shape {shape!r:.80}, but the engines' model has {list(known)}"
            )


def _is_optional(name: str, engine: ModelSignature) -> bool:
    return name.endswith(_COMPUTED) or (name.endswith(HEAD) and engine.is_tied)


def _has_own_head(tensors: Mapping[str, Tensor]) -> bool:
    head = next((tensor for name, tensor in tensors.items() if name.endswith(HEAD)), None)
    embeddings = next((tensor for name, tensor in tensors.items() if name.endswith(EMBEDDINGS)), None)
    if head is None or embeddings is None:
        return False
    if (head.dtype, head.shape) != (embeddings.dtype, embeddings.shape):
        return True
    return any(one != two for one, two in zip(_pieces(head), _pieces(embeddings), strict=True))


def _pieces(tensor: Tensor) -> Iterator[bytes]:
    with tensor.file.open("rb", buffering=0) as opened:
        opened.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            if not (piece := opened.read(min(left, PIECE))):
                raise bad_request(
                    f"{tensor.file} was truncated while being read; another process may still be writing to it"
                )
            yield piece
            left -= len(piece)


def _vocabulary(file: Path) -> str:
    if not file.exists():
        return ""
    tokenizer = read_json(file)
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    ids = model.get("vocab") if isinstance(model, dict) else None
    extra = sorted((str(token.get("id")), token.get("content")) for token in added or () if isinstance(token, dict))
    encoded = orjson.dumps([ids, extra], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(encoded).hexdigest()


def _some(given: Iterable[str]) -> str:
    names = list(given)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


_BOOKKEEPING = frozenset(
    {
        *("transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path", "_attn_implementation"),
        *("use_cache", "output_attentions", "output_hidden_states", "return_dict", "initializer_range"),
        *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "classifier_dropout"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "auto_map", "task_specific_params", "router_aux_loss_coef"),
        *("max_window_layers", "max_position_embeddings", "quantization_config", "is_training"),
        *("gradient_checkpointing", "output_router_logits", "unsloth_version", "unsloth_fixed", "pretraining_tp"),
        *("chunk_size_feed_forward", "id2label", "label2id", "problem_type", "tokenizer_class", "tie_word_embeddings"),
    }
)
"""Keys of config.json that differ between two saves of the same model, or that do not change what its tensors
compute."""


def config_changes(new: Json, engine: Json) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that has different values in the two configs, with the new and the engine's value. Null values are
    ignored, because other versions of transformers may fill in the default, except for rope_scaling, where null means
    no scaling.

    It ignores a list of irrelevant keys and compares all other keys, because new models have new keys that matter.
    """
    new, engine = _with_theta(new), _with_theta(engine)
    for name in sorted(new.keys() & engine.keys() - _BOOKKEEPING):
        after, before = new[name], engine[name]
        if name == "rope_scaling":
            after, before = _scaling(after), _scaling(before)
        elif after is None or before is None or (name == "sliding_window" and new.get("use_sliding_window") is False):
            continue
        if isinstance(after, dict) and isinstance(before, dict):
            yield from ((f"{name}.{inner}", a, b) for inner, a, b in config_changes(after, before))
        elif after != before:
            yield name, after, before


def _with_theta(config: Json) -> Json:
    """Move rope_theta to the top level: transformers 5 writes it into rope_parameters."""
    inner = config.get("rope_parameters")
    moved = inner.get("rope_theta") if isinstance(inner, dict) else None
    return config if moved is None else {**config, "rope_theta": moved}


def _scaling(value: Any) -> Any:
    is_default = isinstance(value, dict) and value.get("rope_type", value.get("type")) == "default"
    return {"rope_type": "default"} if value is None or is_default else value


_MASKS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F8_E5M2": ("u1", 0x7C),
    "F8_E4M3": ("u1", 0x7F),
    "F8_E8M0": ("u1", 0xFF),
}
"""Tensor type -> the unsigned type of the same width, and the bits that are all ones in a non-finite number."""


def check_finite(tensors: Iterable[Tensor]) -> None:
    """Read every weight. Raises Failure bad_request for the first tensor that contains a NaN or an infinity.

    The bytes are read in chunks of a few megabytes and never converted to floats: in each IEEE format, a NaN or an
    infinity has an exponent of all ones, which a mask detects. The OCP 8-bit formats differ (arXiv 2209.05433): E4M3
    has no infinity and one NaN; E8M0 consists only of an exponent and has one NaN.
    """
    for tensor in tensors:
        if tensor.dtype not in _MASKS:
            continue
        kind, mask = _MASKS[tensor.dtype]
        bits = np.dtype(kind).type(mask)
        try:
            is_finite = all((np.frombuffer(piece, kind) & bits).max() != bits for piece in _pieces(tensor))
        except OSError as error:
            raise bad_request(f"{tensor.file} cannot be read ({error})") from error
        if not is_finite:
            found = f"{tensor.name} in {tensor.file} contains a NaN or an infinity"
            raise bad_request(f"{found}; training may have diverged. Send an earlier checkpoint")


SAMPLE = 64
"""Number of bytes read from the middle of each tensor; a training step changes almost every weight."""


def fingerprint(folder: Path) -> str:
    """Return the fingerprint of a folder of safetensors. Raises Failure bad_request if a file cannot be read.

    It covers config.json or adapter_config.json, the index and, for each weight file, the name, size, modification
    time, header and a few bytes of every tensor. It distinguishes checkpoints that were saved into the same folder
    without reading all weights, even if a copy preserved the times. A copy of a folder has a different fingerprint
    unless it preserves the times (`cp -p`, `rsync -t`).
    """
    digest = hashlib.sha256()
    for name in ("config.json", "adapter_config.json", INDEX):
        if (file := folder / name).exists():
            digest.update(f"{name}\0".encode() + file.read_bytes())
    for file in weight_files(folder):
        tensors = read_header(file)
        try:
            with file.open("rb", buffering=0) as opened:
                stat = file.stat()
                digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
                for tensor in tensors:
                    digest.update(f"{tensor.name}\0{tensor.dtype}\0{tensor.shape}\0{tensor.start}\0".encode())
                    opened.seek(max(tensor.start, (tensor.start + tensor.end - SAMPLE) // 2))
                    digest.update(opened.read(min(SAMPLE, tensor.end - tensor.start)))
        except OSError as error:
            raise bad_request(f"{file} cannot be read ({error})") from error
    return digest.hexdigest()[:16]


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def weight_files(folder: Path) -> list[Path]:
    """Return the files that vLLM loads: those in the index, else every *.safetensors.

    Raises Failure bad_request if the index is invalid or ambiguous.
    """
    if not (folder / INDEX).exists():
        return sorted(folder.glob("*.safetensors"))
    named = _weight_map(folder).values()
    odd = next((name for name in named if not isinstance(name, str) or PurePath(name).name != name), None)
    if odd is not None:
        raise bad_request(f"{folder / INDEX} names {str(odd)[:100]!r}; expected the name of a file in that folder")
    if (folder / SINGLE).exists() and SINGLE not in named:
        detail = f"{folder} has {SINGLE} and an index that names other files, which is ambiguous"
        raise bad_request(f"{detail}: save each version in an empty folder")
    return [folder / name for name in sorted(set(named))]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        for tensor in read_header(file):
            if tensor.name in found:
                files = f"{found[tensor.name].file} and {file}"
                raise bad_request(f"{tensor.name} is in both {files}; expected it only once")
            found[tensor.name] = tensor
    for name, listed in _weight_map(folder).items() if (folder / INDEX).exists() else ():
        if name not in found or found[name].file.name != listed:
            raise bad_request(f"{folder / INDEX} maps {name} to {listed}, but that file does not contain it")
    return found


def read_header(file: Path) -> list[Tensor]:
    try:
        return safetensors_headers.read_header(file)
    except FileNotFoundError:
        raise bad_request(f"{file} is missing, but {INDEX} refers to it") from None
    except (OSError, ValueError) as error:
        detail = f"{file} cannot be read as safetensors ({error}); another process may still be writing it"
        raise bad_request(detail) from error


def _weight_map(folder: Path) -> Json:
    named = read_json(folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise bad_request(f"{folder / INDEX} has no weight_map, which maps each tensor to its file")
    return named


def read_json(file: Path) -> Json:
    try:
        value: Any = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        detail = f"{file} cannot be read ({error}); expected a folder written by save_pretrained"
        raise bad_request(detail) from error
    if not isinstance(value, dict):
        raise bad_request(f"{file} is not a JSON object")
    return value


def bad_request(detail: str) -> Failure:
    return Failure(FailureKind.BAD_REQUEST, detail)


def conflict(detail: str) -> Failure:
    return Failure(FailureKind.BAD_REQUEST, detail, status=409)


def upstream_error(detail: str) -> Failure:
    return Failure(FailureKind.UPSTREAM_ERROR, detail)
