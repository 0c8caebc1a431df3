"""Compares a checkpoint's configuration, tensors and vocabulary with the model of the engines.

An engine keeps the configuration and the tokenizer that it was started with. Loading a checkpoint of a different model
either fails, which destroys the weights, or succeeds with wrong results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.weights.config_changes import config_changes
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.responses_api_models.chat_engine.weights.safetensors_headers import Tensor, read_json

HEAD = "lm_head.weight"
EMBEDDINGS = "embed_tokens.weight"
PIECE = 8 * 1024 * 1024
"""Bytes compared at a time."""
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
"""Tensor types that an engine converts to its own type when it loads weights."""
_COMPUTED = "rotary_emb.inv_freq"
"""A tensor that some trainers save although engines compute it."""


@dataclass(frozen=True)
class ModelSignature:
    """A model's configuration, tensors, output head and vocabulary."""

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
    """Return the signature of a checkpoint with these tensors. Raises Failure bad_request if a file is unreadable."""
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
    """
    _check_head(folder, new)
    if engine is None:
        return ["the checkpoint was not compared with the engines' model, which cannot be read on this host"]
    for name, new_value, engine_value in config_changes(new.config, engine.config):
        found = f"{name} is {_abbreviated(new_value)} in config.json, but the engines' is {_abbreviated(engine_value)}"
        raise bad_request(f"{folder} is a different model: {found}")
    if new.vocabulary and engine.vocabulary and new.vocabulary != engine.vocabulary:
        raise bad_request(
            f"{folder} is a different model: its tokenizer.json and the engines' map tokens to different ids"
        )
    if not engine.shapes:
        return ["the engines' own folder has no *.safetensors, so the tensors were not compared"]
    _compare_shapes(folder, new, engine)
    return _compare_types(folder, new, engine)


def check_announced(request: Json, engine: ModelSignature | None) -> None:
    """Check the tensors that a trainer announces before a transfer (`update_info` of vLLM's NCCL transfer).

    Raises Failure bad_request if a shape differs from the engines' model. Unknown names pass, because a trainer may
    send parts that the engine has fused.
    """
    info = request.get("update_info")
    names, shapes = (info.get("names"), info.get("shapes")) if isinstance(info, dict) else (None, None)
    if engine is None or not isinstance(names, list) or not isinstance(shapes, list):
        return
    for name, shape in zip(names, shapes, strict=False):
        known = engine.shapes.get(name) if isinstance(name, str) else None
        if known is not None and list(known) != shape:
            raise bad_request(
                f"update_info: {name} has the shape {_abbreviated(shape)}, but the engines' model has {list(known)}"
            )


def _check_head(folder: str, new: ModelSignature) -> None:
    """Require an output head: if it is missing, vLLM returns 200 and keeps the old one."""
    named = new.config.get("architectures")
    is_causal = isinstance(named, list) and any(str(name).endswith("ForCausalLM") for name in named)
    has_embeddings = any(name.endswith(EMBEDDINGS) for name in new.shapes)
    if is_causal and has_embeddings and not new.is_tied and not any(name.endswith(HEAD) for name in new.shapes):
        raise bad_request(f"{folder} is incomplete: it lacks {HEAD}, but tie_word_embeddings is false")


def _compare_shapes(folder: str, new: ModelSignature, engine: ModelSignature) -> None:
    shapes, known = new.shapes, engine.shapes
    other = [
        f"{name} is {list(shapes[name])} instead of {list(shape)}"
        for name, shape in known.items()
        if shapes.get(name, shape) != shape
    ]
    if other:
        raise bad_request(f"{folder} is a different model: {_some(other)}")
    if missing := [name for name in known if name not in shapes and not _is_optional(name, engine)]:
        raise bad_request(f"{folder} is incomplete: it lacks {_some(missing)}, which the engines' model has")
    if extra := [name for name in shapes if name not in known and not _is_optional(name, engine)]:
        raise bad_request(
            f"{folder} is a different model: it has {_some(extra)}, which the engines' model does not have"
        )
    if new.has_own_head and engine.is_tied:
        raise bad_request(
            f"{folder} is a different model: it has its own {HEAD}, but the engines use their embeddings as the head"
        )


def _compare_types(folder: str, new: ModelSignature, engine: ModelSignature) -> list[str]:
    known = engine.dtypes
    changed = [(name, dtype, known[name]) for name, dtype in new.dtypes.items() if known.get(name, dtype) != dtype]
    if wrong := [f"{name} is {now} instead of {then}" for name, now, then in changed if not {now, then} <= FLOATS]:
        raise bad_request(f"{folder} has tensors of a different type: {_some(wrong)}")
    if changed:
        name, now, then = changed[0]
        return [f"{len(changed)} tensors are {now}, but {then} in the engines' folder ({name}); engines convert them"]
    return []


def _is_optional(name: str, engine: ModelSignature) -> bool:
    return name.endswith(_COMPUTED) or (name.endswith(HEAD) and engine.is_tied)


def _has_own_head(tensors: Mapping[str, Tensor]) -> bool:
    head = next((tensor for name, tensor in tensors.items() if name.endswith(HEAD)), None)
    embeddings = next((tensor for name, tensor in tensors.items() if name.endswith(EMBEDDINGS)), None)
    if head is None or embeddings is None:
        return False
    return (head.dtype, head.shape) != (embeddings.dtype, embeddings.shape) or not _has_same_bytes(head, embeddings)


def _has_same_bytes(one: Tensor, two: Tensor) -> bool:
    with one.file.open("rb") as first, two.file.open("rb") as second:
        first.seek(one.start)
        second.seek(two.start)
        left = one.end - one.start
        while left > 0:
            if first.read(min(left, PIECE)) != second.read(min(left, PIECE)):
                return False
            left -= PIECE
    return True


def _vocabulary(file: Path) -> str:
    if not file.exists():
        return ""
    tokenizer = read_json(file)
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    ids = model.get("vocab") if isinstance(model, dict) else None
    extra = sorted((str(token.get("id")), token.get("content")) for token in added or () if isinstance(token, dict))
    encoded = orjson.dumps([ids, extra], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(encoded).hexdigest()


def _abbreviated(value: Any) -> str:
    return repr(value)[:80]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
