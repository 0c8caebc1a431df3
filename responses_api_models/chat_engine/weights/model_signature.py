"""Profile: what must not change when a policy's weights do, and whether a checkpoint keeps it.

An engine keeps the configuration and the tokenizer that it was started with: a checkpoint of another model is either
not loaded, and the weights are gone, or loaded and computed wrongly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.responses_api_models.chat_engine.weights.config_changes import config_changes
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.responses_api_models.chat_engine.weights.safetensors_headers import Tensor, read_json
from rollyard.services.types import Json

HEAD = "lm_head.weight"
EMBEDDINGS = "embed_tokens.weight"
PIECE = 8 * 1024 * 1024
"""Bytes that are compared at a time."""
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
"""Types that an engine converts to its own."""
_COMPUTED = "rotary_emb.inv_freq"
"""Written by some trainers; engines compute it."""


@dataclass(frozen=True)
class ModelSignature:
    """A model's configuration, tensors, output head and vocabulary."""

    config: Json
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    has_own_head: bool
    """It has an output head, whose weights are not those of the embeddings."""
    vocabulary: str
    """A hash of which token has which id; empty where the folder holds no tokenizer.json."""

    @property
    def is_tied(self) -> bool:
        """An engine that is started with it takes the embeddings for the output head.

        transformers writes tie_word_embeddings wherever it is false; vLLM unties a model whose head differs.
        """
        inner = self.config.get("text_config")
        default = inner.get("tie_word_embeddings") if isinstance(inner, dict) else None
        return self.config.get("tie_word_embeddings", default) is not False and not self.has_own_head


def model_signature(folder: Path, tensors: Mapping[str, Tensor]) -> ModelSignature:
    """Of a checkpoint whose tensors were read. Raises Failure bad_request."""
    return ModelSignature(
        config=read_json(folder / "config.json"),
        shapes={name: tensor.shape for name, tensor in tensors.items()},
        dtypes={name: tensor.dtype for name, tensor in tensors.items()},
        has_own_head=_has_own_head(tensors),
        vocabulary=_vocabulary(folder / "tokenizer.json"),
    )


def compare(folder: str, new: ModelSignature, engine: ModelSignature | None) -> list[str]:
    """Warnings about the checkpoint in `folder`, which goes to engines that were started with the model of `engine`;
    None where that is not known. Raises Failure bad_request.
    """
    _check_head(folder, new)
    if engine is None:
        return ["the model that the engines were started with is not visible here, so the two were not compared"]
    for name, ours, theirs in config_changes(new.config, engine.config):
        told = f"{name} is {_cut(ours)} in config.json, and the engines' is {_cut(theirs)}"
        raise bad_request(f"{folder} is another model: {told}")
    if new.vocabulary and engine.vocabulary and new.vocabulary != engine.vocabulary:
        raise bad_request(
            f"{folder} is another model: its tokenizer.json gives tokens other ids than the engines' does"
        )
    if not engine.shapes:
        return ["the engines' own folder holds no *.safetensors, so the tensors were not compared"]
    _compare_shapes(folder, new, engine)
    return _compare_types(folder, new, engine)


def check_announced(request: Json, engine: ModelSignature | None) -> None:
    """The tensors that a trainer is about to send its own way, where it names them (`update_info` of vLLM's NCCL
    transfer). Raises Failure bad_request: one has another shape than the engines' model. Names that are not known here
    pass: a trainer may send parts that the engine has joined.
    """
    info = request.get("update_info")
    names, shapes = (info.get("names"), info.get("shapes")) if isinstance(info, dict) else (None, None)
    if engine is None or not isinstance(names, list) or not isinstance(shapes, list):
        return
    for name, shape in zip(names, shapes, strict=False):
        known = engine.shapes.get(name) if isinstance(name, str) else None
        if known is not None and list(known) != shape:
            raise bad_request(
                f"update_info: {name} has the shape {_cut(shape)}, and the engines' model has {list(known)}"
            )


def _check_head(folder: str, new: ModelSignature) -> None:
    """A load without the head is answered 200 by vLLM, which goes on with the old one."""
    named = new.config.get("architectures")
    is_causal = isinstance(named, list) and any(str(name).endswith("ForCausalLM") for name in named)
    has_embeddings = any(name.endswith(EMBEDDINGS) for name in new.shapes)
    if is_causal and has_embeddings and not new.is_tied and not any(name.endswith(HEAD) for name in new.shapes):
        raise bad_request(f"{folder} is not whole: it lacks {HEAD}, and tie_word_embeddings is false")


def _compare_shapes(folder: str, new: ModelSignature, engine: ModelSignature) -> None:
    shapes, known = new.shapes, engine.shapes
    other = [
        f"{name} {list(shapes[name])} for {list(shape)}"
        for name, shape in known.items()
        if shapes.get(name, shape) != shape
    ]
    if other:
        raise bad_request(f"{folder} is another model: {_some(other)}")
    if missing := [name for name in known if name not in shapes and not _is_optional(name, engine)]:
        raise bad_request(f"{folder} is not whole: it lacks {_some(missing)}, which the engines' model has")
    if extra := [name for name in shapes if name not in known and not _is_optional(name, engine)]:
        raise bad_request(f"{folder} is another model: it has {_some(extra)}, which the engines' model has not")
    if new.has_own_head and engine.is_tied:
        raise bad_request(
            f"{folder} is another model: it has a {HEAD} of its own, and the engines take the embeddings for it"
        )


def _compare_types(folder: str, new: ModelSignature, engine: ModelSignature) -> list[str]:
    known = engine.dtypes
    changed = [(name, dtype, known[name]) for name, dtype in new.dtypes.items() if known.get(name, dtype) != dtype]
    if wrong := [f"{name} {now} for {then}" for name, now, then in changed if not {now, then} <= FLOATS]:
        raise bad_request(f"{folder} has tensors of another type: {_some(wrong)}")
    if changed:
        name, now, then = changed[0]
        return [f"{len(changed)} tensors are {now} where the engines' folder has {then} ({name}): engines convert them"]
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
    told = orjson.dumps([ids, extra], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(told).hexdigest()


def _cut(value: Any) -> str:
    return repr(value)[:80]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
