"""Finds differences in config.json that change what a model computes.

It ignores a list of irrelevant keys and compares all other keys, because new models have new keys that matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollyard.records.types import Json

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
